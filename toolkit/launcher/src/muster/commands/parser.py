"""The command line of `muster`: which command was asked for, and what a wrong one is answered.

A command's module is imported only when that command is asked for, and argparse only then, so
that `muster --help` costs little more than starting Python.
"""

from __future__ import annotations

import errno
import os
import sys

INTERRUPTED_EXIT_CODE = 128 + 2
_CANNOT_PRINT = (errno.EPIPE, errno.ENOSPC, errno.EIO)

HELP = """\
usage: muster COMMAND [OPTIONS]

examples:
  muster local train.py                       run a training script here, as SageMaker would
  muster local train.py --hosts 2 --distribution torch_distributed
  muster local train.py --channel train=data/ --hyperparameter lr=0.1 -- --verbose
  muster plan train.py --hosts 2              what that run would do; starts nothing
  muster doctor                               check this machine for problems that break jobs

commands:
  local    run a real job of one or several hosts on this machine
  run      one host of a job on Slurm, Kubernetes, AWS Batch or a list of hosts
  submit   hand a job to Slurm, Kubernetes, AWS Batch or hosts by ssh; follow it; cancel it
  plan     print what a run would do, for a script or a folder of SageMaker's files
  history  list, show, repeat and remove runs
  logs     print what the ranks of a run wrote, also while they write
  ps       list the ranks of a run that runs: pid, step, age of the last output, state
  stacks   say who waits for whom in a run that hangs, with the stacks
  stop     end a run that runs, with time for its ranks to save
  report   one page: what a run did, why it ended so, what to do; or two runs compared
  trace    a run as a trace for Perfetto, with what torch.profiler wrote
  bench    run a program in several sizes, and say how it scales
  doctor   check this machine and print the fix for each finding
  sbom     list all packages of this image or machine (CycloneDX)
  sdk      print what a SageMaker client passes: metric-definitions

options:
  -h, --help   this page; `muster COMMAND --help` for one command
  --version    print the version

exit codes:
  0          all ranks exited 0                  102  ClusterError, PeerError: a host is
  1-99       the first failing rank's own code        missing or was lost
  128 + n    the first failing rank died of      105  InternalError: a defect of muster
             signal n                            106  LaunchError: the launcher ended before
  100        ConfigError: the request                 all its ranks ran
  101        SourceError, InstallError: code     124  `muster local --timeout` ran out
             or packages                         143  stopped from outside
  103        HangError: ranks waited longer than MUSTER_HANG_S
  2          the command line is wrong
"""


COMMANDS = {  # its module
    "local": "muster.local.command",
    "run": "muster.elsewhere.command",
    "submit": "muster.submit.command",
    "plan": "muster.commands.show_plan",
    "history": "muster.local.record.history_command",
    "logs": "muster.local.record.logs_command",
    "ps": "muster.commands.live.ps",
    "stacks": "muster.commands.live.stacks",
    "stop": "muster.commands.live.stop",
    "report": "muster.commands.records.report",
    "trace": "muster.commands.records.trace",
    "bench": "muster.commands.records.bench",
    "doctor": "muster.commands.doctor",
    "sbom": "muster.commands.sbom",
    "sdk": "muster.commands.sdk",
}
OF_SCRIPTS = (
    "local",
    "run",
    "submit",
    "plan",
    "bench",
)  # arguments of a script may come after `--`


def main(argv: list[str]) -> int:
    """Runs the command of `argv` (without the program's name); returns the exit code: 0, too, where
    the reader is gone (`muster history | head`)."""
    try:
        code = _answer(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_PRINT:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python still holds
        if error.errno == errno.EPIPE:
            return 0
        sys.stderr.write(f"muster: cannot print: {error.strerror}\n")
        return 1


def _answer(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(HELP)
        return 0
    if argv[0] == "--version":
        from muster.version import __version__

        sys.stdout.write(f"muster {__version__}\n")
        return 0
    return _run(argv[0], argv[1:])


def _run(name: str, rest: list[str]) -> int:
    from importlib import import_module

    from muster.arguments import USAGE_EXIT_CODE, HelpShown, Parser, UsageError, tell

    prog = "muster"
    try:
        if name not in COMMANDS:
            raise _unknown(name)
        prog = f"muster {name}"
        command = import_module(COMMANDS[name])
        parser = Parser(prog, name in OF_SCRIPTS)
        command.add_arguments(parser)
        args = parser.parse(rest)
        _hear_interrupts()
        _refuse_to_be_nowhere()
        code: int = command.run(args)
        return code
    except HelpShown:
        return 0
    except KeyboardInterrupt:
        said, code = "interrupted", INTERRUPTED_EXIT_CODE
    except UsageError as error:
        said, code = f"{error.message}\n  {error.fix}".rstrip(), USAGE_EXIT_CODE
    tell(f"{prog}: {said}\n")
    return code


def _refuse_to_be_nowhere() -> None:
    from muster.arguments import UsageError

    try:
        os.getcwd()
    except OSError:
        raise UsageError("the current folder is gone", "cd into one that exists") from None


def _hear_interrupts() -> None:
    """Ctrl-C is a KeyboardInterrupt again: before it ended the process at once (see cli)."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _unknown(name: str) -> Exception:
    from muster.arguments import UsageError
    from muster.types.names import TYPED, did_you_mean

    if name.startswith("-"):
        guess = did_you_mean(name, ("--help", "--version"), likeness=TYPED)
        text = f"unknown option {name}{guess}"
        return UsageError(text, "options go after the command: muster COMMAND [OPTIONS]")
    if name.endswith((".py", ".sh")):
        return UsageError(f"{name!r} is not a command", f"to run it here: muster local {name}")
    suggestion = did_you_mean(name, COMMANDS, likeness=TYPED)
    return UsageError(
        f"{name!r} is not a command{suggestion}", f"the commands are {', '.join(COMMANDS)}"
    )
