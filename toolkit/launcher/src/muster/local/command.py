"""`muster local`: its options, and its way from the command line to a run."""

from __future__ import annotations

import argparse

from muster.commands.arguments import Parser, one_of, seconds, whole_number
from muster.local.docker_request import (
    DOCKER,
    LEAST_MEMORY_BYTES,
    LEAST_SHM_BYTES,
    processors,
    size,
)
from muster.local.request import MAX_HOSTS, read_request

USAGE = "muster local SCRIPT [OPTIONS] [-- ARGUMENTS OF THE SCRIPT]"
EXAMPLES = """\
examples:
  muster local train.py
  muster local train.py --hosts 2 --processes-per-host 2 --distribution torch_distributed
  muster local train.py --channel train=data/ --hyperparameter epochs=3 -- --verbose
  muster local run.sh --source-dir src --isolation process --timeout 600
  muster local train.py --hosts 2 --isolation docker --image my-image --memory 4g

Every host is a real `train` with its own /opt/ml; the exit code is the job's (124: the time ran
out; `muster --help` lists the others). The run is kept in muster-runs/TIME-SCRIPT, link `latest`.
"""


def add_arguments(parser: Parser) -> None:
    """Declares the options of `muster local`."""
    parser.usage = USAGE
    parser.description = EXAMPLES
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="the entry point: a .py, a .sh or any executable")
    add("--source-dir", metavar="DIR", help="folder of the code (SCRIPT's own)")
    add("--hosts", metavar="N", type=whole_number(1, MAX_HOSTS), help="number of hosts (1)")
    add("--processes-per-host", metavar="P", type=whole_number(1, 4096), help="ranks on each host")
    add("--distribution", metavar="NAME|JSON", help="the SDK's distribution option")
    repeated = {"action": "append", "default": []}
    add("--hyperparameter", metavar="K=V", **repeated, help="one hyperparameter; repeatable")  # type: ignore[arg-type]
    add("--channel", metavar="NAME=DIR", **repeated, help="one input channel; repeatable")  # type: ignore[arg-type]
    add("--env", metavar="K=V", **repeated, help="one variable for the script; repeatable")  # type: ignore[arg-type]
    add("--instance-groups", metavar="NAME:COUNT[:TYPE],...", help="a heterogeneous cluster")
    add(
        "--instance-type", metavar="TYPE", default="local", help="what the hosts are called (local)"
    )
    add("--output", metavar="DIR", help="run folder (muster-runs/TIME-SCRIPT)")
    add(
        "--isolation",
        metavar="netns|process|docker",
        type=one_of("netns", "process", DOCKER),
        help="hosts in namespaces of their own, as plain processes, or as containers (netns where "
        "possible)",
    )
    add("--timeout", metavar="SECONDS", type=seconds, help="stop the job after this time")
    add("--json", action="store_true", help="print the summary on stdout, all else on stderr")
    _add_docker_arguments(parser)


def _add_docker_arguments(parser: Parser) -> None:
    group = parser.add_argument_group(
        "with --isolation docker",
        "Limits are for each host. Sizes: a number and k, m or g. Nothing is ever pulled.",
    )
    add = group.add_argument
    add("--image", metavar="IMAGE", help="what hosts are containers of; has a `train` (required)")
    add("--memory", metavar="SIZE", type=size(LEAST_MEMORY_BYTES), help="memory, no swap (all)")
    add(
        "--shm-size",
        metavar="SIZE",
        type=size(LEAST_SHM_BYTES),
        help="size of /dev/shm (half of the memory)",
    )
    add("--cpus", metavar="N", type=processors, help="processors, such as 1.5 (all)")
    add("--keep", action="store_true", help="leave containers and network, and say how to look")


def run(args: argparse.Namespace) -> int:
    """Runs the job; returns its exit code. Raises UsageError before anything has started."""
    request = read_request(args)
    from muster.local.launch import launch

    return launch(request)
