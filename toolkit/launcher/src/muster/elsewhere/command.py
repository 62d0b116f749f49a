"""`muster run`: on each host of a job that another engine started, what `train` does on SageMaker.

It reads what the engine says, writes the request that `train` reads, and becomes `train`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from muster.arguments import Parser, UsageError, tell, whole_number
from muster.contract.engines import NAMES, Detected, detect
from muster.contract.engines.hosts import COUNT, HOSTS, INDEX, LEADER
from muster.contract.engines.values import MAX_COUNT, SECRET_FILE
from muster.elsewhere import compose
from muster.elsewhere.network import Whereabouts, find_place, host_names
from muster.elsewhere.place import Folders, is_packed, make_folders
from muster.elsewhere.secret import read_secret
from muster.local.command import FOREIGN, SCRIPT_HELP, add_job_options, read_job
from muster.local.request import Request
from muster.types.engine import Engine
from muster.types.errors import ConfigError
from muster.types.files import read_text
from muster.types.names import listed

USAGE = "muster run [OPTIONS] SCRIPT [-- ARGUMENTS OF THE SCRIPT]"
EXAMPLES = """\
examples, on every host of the job:
  srun --ntasks-per-node=1 muster run train.py --output runs/1 --distribution torch_distributed
  muster run train.py --host-list node-a,node-b --host-index 1 --secret-file ~/.job-secret

The engine (Slurm, Kubernetes, AWS Batch, a list of hosts) says which host this is; --engine chooses
one. Everything else is as with `muster local`, and the exit code is the job's on every host.
"""
FolderMaker = Callable[[Request, Engine, Whereabouts, "str | None"], Folders]
TRAIN = (sys.executable, "-m", "muster", "train")


def add_arguments(parser: Parser) -> None:
    """Declares SCRIPT and the options of `muster run`."""
    parser.usage = USAGE
    parser.description = EXAMPLES
    parser.foreign = {
        name: fix for name, fix in FOREIGN.items() if fix != "the number of hosts is --hosts"
    }
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help=SCRIPT_HELP)
    add_job_options(parser, instance_type="", folder="/opt/ml, if it can be written")
    parser.add_argument(
        "--hosts",
        metavar="N",
        type=whole_number(1, MAX_COUNT),
        dest="count",
        help="refuse another number of hosts",
    )
    add_engine_options(parser)
    parser.add_argument(
        "--attended",
        action="store_true",
        help="nothing but this: the request comes on stdin, from `muster submit --on hosts:FILE`",
    )


def add_engine_options(parser: Parser) -> None:
    """Declares how a host learns its place in the job."""
    add = parser.add_argument
    add("--engine", metavar="NAME", help=f"what started this host: {listed(NAMES)} (found)")
    add("--host-list", metavar="NAME,...", help=f"all hosts, NAME or NAME=ADDRESS ({HOSTS})")
    index = whole_number(0, MAX_COUNT)
    add("--host-index", metavar="I", type=index, help=f"this host in the list, from 0 ({INDEX})")
    add("--leader", metavar="NAME", help=f"without a list: host 0's name or address ({LEADER})")
    add("--secret-file", metavar="FILE", help=f"a file with the job's secret ({SECRET_FILE})")
    add(
        "--insecure-join",
        action="store_true",
        help="admit hosts that have neither a name nor a secret to prove that they are of the job",
    )


def run(args: argparse.Namespace) -> int:
    """Becomes `train`, or returns 100 for an engine or a secret that cannot be right.

    Raises UsageError for a command line that cannot be obeyed.
    """
    if args.attended:
        from muster.elsewhere.attended import attend

        return attend(_obey)
    if args.script is None and args.module is None:
        raise UsageError("SCRIPT is missing", "see muster run --help")
    try:
        _become_train(*prepared(args, "muster run", make_folders))
    except ConfigError as error:
        for problem in error.problems:
            tell(f"muster run: {ConfigError.__name__}: {problem}\n")
            tell(f"Fix: {problem.fix}\n" if problem.fix else "")
        return error.exit_code


def prepared(
    args: argparse.Namespace, who: str, folders_of: FolderMaker
) -> tuple[str, dict[str, str]]:
    """The base folder with the request of this host in it, and the environment of its `train`.

    Raises ConfigError for an engine or a secret that cannot be right, and UsageError.
    """
    environ = with_options(os.environ, args)
    detected = detect(environ, read_text, args.engine or "")
    tell(f"{who}: {in_words(detected)}\n")
    engine = detected.engine
    refuse_contradiction(engine, args)
    request = request_of(args, engine)
    from muster.local.preparation import checked_keys

    keys = checked_keys(request)
    secret = read_secret(engine, environ)
    place = find_place(engine)
    folders = folders_of(request, engine, place, args.output)
    base = write_request(folders, request, detected, place, keys)
    made = compose.environ(environ, request, engine, place, base, folders.run, secret)
    return base, made


def _obey(argv: list[str]) -> int:
    """`run` with another command line than this process has."""
    parser = Parser("muster run", script_arguments=True)
    add_arguments(parser)
    return run(parser.parse(argv))


def with_options(caller: Mapping[str, str], args: argparse.Namespace) -> dict[str, str]:
    """The environment with the options that stand for variables."""
    environ = dict(caller)
    options = {
        HOSTS: args.host_list,
        INDEX: args.host_index,
        LEADER: args.leader,
        SECRET_FILE: args.secret_file,
    }
    environ.update({name: str(value) for name, value in options.items() if value is not None})
    if args.count and {INDEX, LEADER} & environ.keys() and HOSTS not in environ:
        environ.setdefault(COUNT, str(args.count))
    if args.insecure_join:
        environ["MUSTER_INSECURE_JOIN"] = "1"
    return environ


def in_words(detected: Detected) -> str:
    """One line for the log."""
    engine = detected.engine
    text = f"engine {engine.name} ({detected.why}), host {engine.host_index} of {engine.host_count}"
    if detected.others:
        text += f"; not used: {', '.join(detected.others)} (--engine chooses)"
    return text


def refuse_contradiction(engine: Engine, args: argparse.Namespace) -> None:
    """Raises UsageError or ConfigError for what the engine contradicts."""
    if args.count not in (None, engine.host_count):
        where = engine.origins.get("count", "no other is known")
        raise ConfigError.of(
            "--hosts",
            f"{args.count} hosts were asked for, {engine.name} gives {engine.host_count} ({where})",
            "leave out --hosts; hosts of your own need --host-list and --host-index, too",
        )
    if args.host_list and engine.name != "hosts":
        what = f"--host-list: this is a host of {engine.name}, which has its own list"
        raise UsageError(what, "leave it out, or add --engine hosts")
    if engine.name == "sagemaker":
        what = "this is a host of SageMaker, whose own request says what to run"
        raise UsageError(what, "start `train`; --engine chooses another engine")


def request_of(args: argparse.Namespace, engine: Engine) -> Request:
    """The request, as of `muster local` for one host. Raises UsageError."""
    me = os.path.join(args.output, host_names(engine)[engine.host_index]) if args.output else None
    request = read_job(args, packed=is_packed(args.source_dir or ""), output=me)
    processes = request.processes_per_host
    if processes is None and request.distribution not in (None, "none"):
        processes = engine.slots
    return request._replace(
        processes_per_host=processes, instance_type=args.instance_type or engine.name
    )


def write_request(
    folders: Folders,
    request: Request,
    detected: Detected,
    place: Whereabouts,
    keys: Mapping[str, str],
) -> str:
    """Writes the request below the base folder, which is returned. Raises UsageError."""
    import time

    from muster.local import tree
    from muster.local.record.runfolder import OTHER_PLACE, in_words

    deadline_s = detected.engine.deadline_s
    left_s = None if deadline_s is None else deadline_s - time.time()
    documents = compose.documents(request, detected, place, keys, folders.source, left_s)
    try:
        tree.write_tree(folders.base, documents, folders.channels)
        own = os.path.join(folders.base, tree.CHECKPOINTS)
        if request.checkpoint and os.path.realpath(request.checkpoint) != os.path.realpath(own):
            os.makedirs(request.checkpoint, exist_ok=True)
            tree.share_checkpoints(folders.base, request.checkpoint)
    except OSError as error:
        raise UsageError(f"the request cannot be written: {in_words(error)}", OTHER_PLACE) from None
    return folders.base


def _become_train(base: str, environ: Mapping[str, str]) -> NoReturn:
    os.chdir(base)  # no module of the caller's folder is imported in place of one of Python's
    sys.stderr.flush()
    try:
        os.execve(TRAIN[0], TRAIN, environ)
    except OSError as error:  # such as arguments and variables that are too long together
        raise UsageError(f"{TRAIN[0]} cannot be started: {error.strerror}") from None
