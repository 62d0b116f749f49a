"""`muster submit`: a job for Slurm, Kubernetes, AWS Batch or hosts reached by ssh."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from muster.arguments import Parser, UsageError, seconds, tell, whole_number
from muster.contract.engines.values import MAX_COUNT
from muster.local.command import FOREIGN, NEW_FOLDER, SCRIPT_HELP, add_job_options, read_job
from muster.local.paths import shown
from muster.local.request import Request, parse_pairs
from muster.submit.arguments import code_elsewhere
from muster.types.deadlines import RANGES
from muster.types.errors import STOPPED_EXIT_CODE
from muster.types.names import TYPED, did_you_mean, listed

if TYPE_CHECKING:
    from muster.submit.values import Submission, SubmitTarget, Submitted

USAGE = """muster submit SCRIPT --on ENGINE [OPTIONS] [-- ARGUMENTS OF THE SCRIPT]
       muster submit --status RUN | --follow RUN | --cancel RUN"""
EXAMPLES = """\
examples:
  muster submit train.py --on slurm --hosts 8 --distribution torch_distributed --follow
  muster submit train.py --on slurm --hosts 2 --set partition=gpu --set gpus-per-node=8 --dry-run
  muster submit train.py --on kubernetes --hosts 2 --image registry/image:1
  muster submit train.py --on hosts:nodes.txt
  muster submit --status muster-runs/20261129-101500-train

It writes the engine's own file, gives it to the engine's own client, and keeps nothing but the run
folder. On every host `muster run` then does what `train` does on SageMaker. `muster ps`, `stacks`
and `stop` take the run folder, and ask the job where it runs.
"""
TARGETS = {
    "slurm": "muster.submit.slurm",
    "kubernetes": "muster.submit.kubernetes",
    "batch": "muster.submit.batch",
    "hosts": "muster.submit.hosts.target",
}
FILE_ENGINE = "hosts"
_SPELT = [name if name != FILE_ENGINE else f"{name}:FILE" for name in TARGETS]
RETRIES = 3
OWN_FILES = ("kubernetes", "batch")  # their hosts see no folder of this machine
MAX_NAME = 50  # of a label of DNS, 63, engines add to it
MAX_RETRIES = 100


def add_arguments(parser: Parser) -> None:
    """Declares SCRIPT and the options of `muster submit`."""
    parser.usage = USAGE
    parser.description = EXAMPLES
    parser.foreign = FOREIGN
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help=SCRIPT_HELP)
    add_job_options(parser, instance_type="", folder=NEW_FOLDER)
    add = parser.add_argument
    add("--on", metavar="ENGINE", help=f"where the job runs: {listed(_SPELT)}")
    add("--hosts", metavar="N", type=whole_number(1, MAX_COUNT), dest="count", help="hosts (1)")
    add("--image", metavar="IMAGE", help="the container image, which has muster (none)")
    add("--kind", metavar="KIND", default="", help="pyxis, apptainer; job, jobset, trainjob")
    add("--name", metavar="NAME", help="what the engine calls the job (the script's name)")
    add(
        "--set",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="an option of sbatch or ssh, a field of the job's objects; repeatable",
    )
    add("--grace", metavar="SECONDS", type=seconds, help="time to save after a stop (the engine's)")
    retries = whole_number(0, MAX_RETRIES)
    add("--retries", metavar="N", type=retries, help="further attempts, where one helps (3)")
    add("--python", metavar="FILE", help="without an image: the hosts' Python with muster (this)")
    add("--dry-run", action="store_true", help="print the engine's file and submit nothing")
    add("--follow", metavar="RUN", nargs="?", const="", help="show the job until it has ended")
    add("--status", metavar="RUN", help="say what has become of a submitted job")
    add("--cancel", metavar="RUN", help="end a submitted job as its engine ends jobs")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or with --follow the job's exit code. Raises UsageError."""
    of_a_run = [name for name in ("status", "follow", "cancel") if getattr(args, name)]
    if not of_a_run:
        return _submit(args)
    if len(of_a_run) > 1 or args.script is not None or args.module is not None or args.on:
        fix = "give nothing else; the --follow of a new job stands after its SCRIPT and options"
        raise UsageError(f"--{of_a_run[-1]} RUN is a command of its own", fix)
    from muster.submit import folder
    from muster.submit.follow import follow, in_words, state_of

    action = of_a_run[0]
    job = folder.find(getattr(args, action))
    target = target_of(job.engine)
    if action == "follow":
        return follow(target, job)
    if action == "cancel":
        return _cancel(target, job)
    sys.stdout.write(in_words(job, state_of(target, job)) + "\n")
    return 0


def _cancel(target: SubmitTarget, job: Submitted) -> int:
    """Of one that has ended, what is left at its engine goes. Raises UsageError."""
    from muster.submit import folder
    from muster.submit.follow import in_words, state_of
    from muster.submit.values import ENDED, LOST

    before = None
    with suppress(UsageError):  # who cannot be asked can be told
        before = state_of(target, job)
    if before is not None and before.word == LOST and before.code is None:
        with suppress(UsageError):
            target.cancel(job)
        folder.keep_code(job, STOPPED_EXIT_CODE)
        tell(f"muster submit: {in_words(job, before)}; it counts as stopped from now on\n")
        return 0
    if before is not None and before.word in ENDED:
        target.tidy(job)
        tell(f"muster submit: {in_words(job, before)}; there is nothing to cancel\n")
        return 0
    target.cancel(job)
    tell(f"muster submit: cancelled {job.engine} job {job.job_id}\n")
    with suppress(UsageError):  # keeps the end of one that had not begun, or is forgotten
        found = state_of(target, folder.read(job.run) or job)
        if found.word == LOST and found.code is None:
            folder.keep_code(job, STOPPED_EXIT_CODE)
    return 0


def target_of(name: str) -> SubmitTarget:
    """The engine of that name. Raises UsageError."""
    if name not in TARGETS:
        guess = did_you_mean(name, TARGETS, likeness=TYPED)
        raise UsageError(f"--on {name}: no such engine{guess}", f"known are {listed(_SPELT)}")
    target: SubmitTarget = import_module(TARGETS[name])
    return target


def _submit(args: argparse.Namespace) -> int:
    from muster.local import preparation
    from muster.local.record import runfolder

    if args.script is None and args.module is None:
        raise UsageError("SCRIPT is missing", "see muster submit --help")
    if not args.on:
        raise UsageError("--on is missing: where is the job to run?", f"add --on {listed(_SPELT)}")
    try:
        "".join(args.command_line).encode()
    except UnicodeEncodeError:
        fix = "no engine's file can have it: write it in UTF-8"
        raise UsageError("a word of the command is not in UTF-8", fix) from None
    engine, _, where = args.on.partition(":")
    target = target_of(engine)
    if bool(where) != (engine == FILE_ENGINE):
        fix = f"--on {FILE_ENGINE}:FILE takes a file of hosts, the other engines take none"
        raise UsageError(f"--on {args.on}: which hosts?" if not where else f"--on {args.on}", fix)
    packed = bool(code_elsewhere(args.source_dir or ""))
    if packed and os.path.isabs(args.script or ""):
        what = f"{args.script} is a path of this machine, and the code is elsewhere"
        raise UsageError(what, f"name it from {args.source_dir}: {os.path.basename(args.script)}")
    if engine == "hosts" and args.retries is not None:
        what = f"--retries {args.retries}: a job that a person attends by ssh begins once"
        raise UsageError(what, "leave it out")
    request = read_job(args, image=None, packed=packed, far=engine in OWN_FILES)
    request = request._replace(hosts=args.count or _count(where))
    preparation.asked_distribution(request, preparation.distribution_keys(request))
    planned = runfolder.planned(request.program, request.output)
    job = submission_of(args, request, planned)._replace(where=where)
    target.check(job)
    if args.dry_run:
        sys.stdout.write(target.render(job))
        return 0
    submitted = _hand_over(args, target, job)
    if submitted.code is not None:
        return submitted.code
    if args.follow is None:
        return 0
    from muster.submit.follow import follow

    return follow(target, submitted)


def _count(file: str) -> int:
    """How many hosts a job has that was not told."""
    if not file:
        return 1
    from muster.submit.hosts.listed import read_hosts

    return len(read_hosts(file))


def _hand_over(args: argparse.Namespace, target: SubmitTarget, job: Submission) -> Submitted:
    """With a run folder, which goes again where the engine does not take the job."""
    from muster.local.record import runfolder
    from muster.submit import folder

    request = job.request._replace(checkpoint=None) if args.on in OWN_FILES else job.request
    made = folder.make(request, args.command_line)
    job = job._replace(run=made.path, mark=secrets.token_hex(3))
    with _interrupting():
        try:
            submitted = target.hand_over(job, target.render(job))
        except BaseException:
            if folder.read(made.path) is None:  # else hosts have run it
                runfolder.discard(made)
            raise
        if submitted.code is None:  # else it is over, and kept already
            try:
                name = f"{submitted.engine} job {submitted.job_id}"
                tell(f"muster submit: {name}, in {shown(made.path)}\n")
                folder.keep(submitted)
            except BaseException:  # nobody would find the job again
                with suppress(UsageError):
                    target.cancel(submitted)
                    tell("muster submit: cancelled it\n")
                    runfolder.discard(made)
                raise
    runfolder.drop_earlier(made.path)
    os.close(made.lock)
    return submitted


@contextmanager
def _interrupting() -> Iterator[None]:
    """Inside, a closed terminal and a SIGTERM are a Ctrl-C: what was begun is taken back."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def submission_of(args: argparse.Namespace, request: Request, run: str) -> Submission:
    """The request with where and how it is to run. Raises UsageError."""
    from muster.submit.values import Submission

    name = args.name or label(args.module or request.program)
    if name != label(name):
        fix = f"use a-z, digits and dashes, at most {MAX_NAME}, such as {label(name)}"
        raise UsageError(f"--name {name!r} cannot be a name at every engine", fix)
    if args.python and args.image:
        raise UsageError("--python is for hosts without an image", "leave out one of them")
    least, most = RANGES["stop_total_s"]
    if args.grace is not None and not least <= args.grace <= most:
        raise UsageError(f"--grace {args.grace:g}: a stop takes {least:g} to {most:g} s")
    texts = [text if "=" in text else f"{text}=" for text in args.set]
    return Submission(
        request=request,
        name=name,
        run=run,
        python=_file(args.python or sys.executable),
        image=_image(args.image or "", args.on),
        kind=args.kind,
        settings=parse_pairs("--set", texts),
        grace_s=args.grace,
        retries=RETRIES if args.retries is None else args.retries,
    )


def _file(path: str) -> str:
    """As a job that starts in its run folder finds it; a name alone is looked up on its PATH."""
    return os.path.abspath(path) if os.path.dirname(path) else path


def _image(name: str, engine: str) -> str:
    """A file of an image is a path, too; most images are names that a registry knows."""
    return os.path.abspath(name) if engine not in OWN_FILES and os.path.isfile(name) else name


def label(text: str) -> str:
    """The text as a label of DNS: a script's name without its suffix."""
    stem = re.sub(r"\.(py|sh)$", "", os.path.basename(text))
    found = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not found[:1].isalpha():
        found = f"job-{found}"
    return found[:MAX_NAME].strip("-")
