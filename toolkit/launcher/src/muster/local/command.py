"""`muster local`: its options, and its way from the command line to a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from muster.arguments import Parser, UsageError, one_of, seconds, size, whole_number
from muster.local.backends.choice import NAMES
from muster.local.backends.docker import options
from muster.local.request import MAX_HOSTS, Request, read_request

NO_TYPE = "local"  # of an instance
NEW_FOLDER = "muster-runs/TIME-SCRIPT"
LEAST_MEMORY_BYTES = 6 << 20  # container engines take no less
USAGE = "muster local SCRIPT [OPTIONS] [-- ARGUMENTS OF THE SCRIPT]"
_RANKS = "the number of ranks on each host is --processes-per-host"
_HOSTS = "the number of hosts is --hosts"
_HERE = "only `muster local` has it: elsewhere the engine makes the hosts, and limits them"
_RENDEZVOUS = "leave it out: muster makes the hosts of a run find one another"
# options of torchrun, mpirun, accelerate and srun
FOREIGN = {
    **dict.fromkeys(
        ("-n", "-np", "--np", "--nproc", "--ntasks-per-node", "--num-processes", "--gpus"), _RANKS
    ),
    **dict.fromkeys(("-N", "--nnodes", "--nodes", "--num-machines"), _HOSTS),
    **dict.fromkeys(("--standalone", "--node-rank", "--master-addr", "--master-port"), _RENDEZVOUS),
    **dict.fromkeys(("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"), _RENDEZVOUS),
    **dict.fromkeys(
        ("-q", "--quiet", "--silent"),
        "what muster itself says goes to stderr: 2>/dev/null, or `muster local --json`",
    ),
    "-v": "what train and launchers say is shown with --verbose",
    "--max-restarts": "leave it out, or see --retries of `muster submit`: a failed job ends",
    **dict.fromkeys(
        ("--isolation", "--memory", "--internet", "--timeout", "--fault", "--json"), _HERE
    ),
    "--network": "hosts have the network of their engine, or of --isolation",
    "-e": "one variable for the script is --env K=V",
    "-o": "the run folder is --output DIR",
}
SCRIPT_HELP = "the entry point: a .py, a .sh or any executable"
EXAMPLES = """\
examples:
  muster local train.py
  muster local train.py --hosts 2 --processes-per-host 2 --distribution torch_distributed
  muster local train.py --channel train=data/ --hyperparameter epochs=3 -- --verbose
  muster local -m project.train --hosts 2
  muster local run.sh --source-dir src --isolation process --timeout 600
  muster local train.py --hosts 2 --fault kill:host=algo-2@10s --timeout 120
  muster local train.py --hosts 2 --isolation docker --image my-image --memory 4g

Every host is a real `train` with its own /opt/ml; the exit code is the job's (124: the time ran
out; `muster --help` lists the others). The run is kept in muster-runs/TIME-SCRIPT, link `latest`.
"""


def add_arguments(parser: Parser) -> None:
    """Declares SCRIPT and the options of `muster local`."""
    parser.usage = USAGE
    parser.description = EXAMPLES
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help=SCRIPT_HELP)
    parser.add_argument(
        "--json", action="store_true", help="print the summary on stdout, all else on stderr"
    )
    parser.add_argument(
        "--model-plan",
        action="store_true",
        help="plan the split of a model of smdistributed.modelparallel in place of training it",
    )
    parser.add_argument(
        "--fault",
        metavar="SPEC",
        action="append",
        default=[],
        help="do this to the job: kill:rank=1@10s, kill:host=algo-2@step=40, freeze:rank=1@5s+5s, "
        "slow:rank=3:50%%@5s, cut:algo-1/algo-2@5s+5s, disk:algo-2@step=40, stop@30s, "
        "random:seed=7 (@: after all ranks run, +: for so long); repeatable",
    )
    parser.add_argument(
        "--debug",
        metavar="RANK[:PORT]",
        action="append",
        default=[],
        help="that rank waits for a debugger (debugpy) on 127.0.0.1, port 5678 or a free one; no "
        "time limits",
    )
    parser.add_argument(
        "--debug-on-failure",
        action="store_true",
        help="the rank that fails first with an exception is held, with its frames, for a debugger",
    )
    parser.add_argument(
        "--pdb",
        metavar="RANK",
        action="append",
        default=[],
        help="that rank gets the terminal, for breakpoint(); no time limits",
    )
    add_options(parser)


def add_options(parser: Parser) -> None:
    """Declares what describes a run, for every command that takes one."""
    add_job_options(parser)
    parser.foreign = FOREIGN
    add = parser.add_argument
    add("--hosts", metavar="N", type=whole_number(1, MAX_HOSTS), help="number of hosts (1)")
    add("--instance-groups", metavar="NAME:COUNT[:TYPE],...", help="a heterogeneous cluster")
    add(
        "--isolation",
        metavar="|".join(NAMES),
        type=one_of(*NAMES),
        help="hosts in namespaces of their own, as plain processes, or as containers (netns where "
        "possible)",
    )
    add(
        "--memory",
        metavar="SIZE",
        type=size(LEAST_MEMORY_BYTES),
        help="memory of each host, without swap: a number and k, m or g (all)",
    )
    add("--internet", action="store_true", help="a way out for hosts in namespaces, by pasta")
    add("--timeout", metavar="SECONDS", type=seconds, help="stop the job after this time")
    options.add_arguments(parser)


def add_job_options(parser: Parser, instance_type: str = NO_TYPE, folder: str = NEW_FOLDER) -> None:
    """Declares what describes a job and makes no hosts. `folder`: where the run lies by itself."""
    add = parser.add_argument
    add(
        *("-m", "--module"),
        metavar="NAME",
        help="in place of SCRIPT: a module, named from the source folder (the current one)",
    )
    add("--source-dir", metavar="DIR", help="folder of the code (SCRIPT's own)")
    add("--processes-per-host", metavar="P", type=whole_number(1, 4096), help="ranks on each host")
    add("--oversubscribe", action="store_true", help="allow over 4 ranks for each processor")
    add("--distribution", metavar="NAME|JSON", help="the SDK's distribution option")
    repeated = {"action": "append", "default": []}
    add("--hyperparameter", metavar="K=V", **repeated, help="one hyperparameter; repeatable")  # type: ignore[arg-type]
    add("--channel", metavar="NAME=DIR", **repeated, help="one input channel; repeatable")  # type: ignore[arg-type]
    add("--env", metavar="K[=V]", **repeated, help="one variable for the script (V: the caller's)")  # type: ignore[arg-type]
    add("--env-file", metavar="FILE", help="more of them, as one JSON object of texts")
    add(
        "--instance-type",
        metavar="TYPE",
        default=instance_type,
        help=f"the type of host that scripts see ({instance_type or 'the name of the engine'})",
    )
    add("--output", metavar="DIR", help=f"run folder ({folder})")
    add("--ranks", metavar="N,...", help="whose output reaches the screen: 0,last or 0-3 (all)")
    add("--verbose", action="store_true", help="show INFO of train, and what launchers say")
    add("--overwrite", action="store_true", help="delete what an earlier run left in --output")
    add("--checkpoint", metavar="DIR", help="/opt/ml/checkpoints of all hosts, kept between runs")


def read_job(args: argparse.Namespace, **more: object) -> Request:
    """The request of a command that has the options of `add_job_options` alone, for one host.
    `more`: further arguments, by their names. Raises UsageError."""
    parser = Parser("")
    add_options(parser)
    defaults = {action.dest: action.default for action in parser._actions}
    given = {**defaults, **vars(args), "hosts": None, "json": False, **more}
    return read_request(argparse.Namespace(**given))


def options_given(
    args: argparse.Namespace, declare: Callable[[Parser], None] = add_options
) -> list[str]:
    """The options of `declare` that the command line has."""
    parser = Parser("")
    declare(parser)
    return [
        action.option_strings[0]
        for action in parser._actions
        if action.dest != "help" and getattr(args, action.dest) != action.default
    ]


def run_line(argv: list[str], on_folder: Callable[[str], None] = lambda path: None) -> int:
    """`run` of what would follow `muster local`. Raises UsageError and HelpShown."""
    parser = Parser("muster local", script_arguments=True)
    add_arguments(parser)
    return run(parser.parse(argv), on_folder)


def run(args: argparse.Namespace, on_folder: Callable[[str], None] = lambda path: None) -> int:
    """Runs the job; returns its exit code. Raises UsageError before anything has started."""
    if args.script is None and args.module is None:
        raise UsageError("SCRIPT is missing", "see muster local --help")
    return launched(args, args.model_plan, on_folder)


def launched(
    args: argparse.Namespace, model_plan: bool, on_folder: Callable[[str], None] = lambda path: None
) -> int:
    """Runs the job that the arguments describe, or plans its model. `on_folder`: see `launch`."""
    request = read_request(args)
    from muster.local.launch import launch
    from muster.local.model_plan import planned

    return launch(planned(request) if model_plan else request, args.command_line, on_folder)
