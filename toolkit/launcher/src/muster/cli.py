"""`train` and `muster`: the only callers of exit.

Readable by Python 3.6, so that an old one gets one line that says what is wrong (contract.support).
"""

import os
import sys

GC_THRESHOLD = 50_000  # objects; a start makes 20,000, and no garbage worth a collection


def train() -> None:
    """The container's entry point: runs the job and exits with its code.

    Exits at once, without waiting for threads that a blocked disk or name server may hold.
    """
    _hold_stop_signals()  # first of all: what comes before it is lost where this is PID 1
    _refuse_old_ground()
    arguments = sys.argv[1:]
    if arguments not in ([], ["train"]):
        _leave(_answer(arguments))
    _collect_rarely()
    from muster.train import run

    _leave(run(os.environ).exit_code)


def main() -> None:
    """The command for people; `muster train` is `train`."""
    if sys.argv[1:2] == ["run"]:
        _hold_stop_signals()  # for the `train` that it becomes, which may be PID 1
    else:
        interrupts_end_at_once()
    _collect_rarely()
    if sys.argv[1:2] == ["train"]:
        del sys.argv[1]
        train()
    _refuse_old_ground()
    from muster.commands.parser import main as run_command

    sys.exit(run_command(sys.argv[1:]))


def _collect_rarely() -> None:
    import gc

    gc.set_threshold(GC_THRESHOLD)


def interrupts_end_at_once() -> None:
    """Ctrl-C ends this process without a traceback, until a command is ready to handle it.

    Where SIGINT is ignored it stays so.
    """
    # built in: the import of signal takes long enough to be interrupted itself
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def _hold_stop_signals() -> None:
    """Keeps a stop that comes early, which PID 1 would lose, until the supervisor listens.

    Once the job has its outcome the supervisor has them ignored: they change nothing. Not by
    `signal`, whose import takes longer than this.
    """
    import _signal

    stops = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT)
    _signal.pthread_sigmask(_signal.SIG_BLOCK, stops)


def _answer(arguments: "list[str]") -> int:
    """To arguments that start no job: help and version for people, else usage and code 100."""
    from muster.contract.usage import USAGE, refuse_arguments

    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    if arguments == ["--version"]:
        from muster.version import __version__

        sys.stdout.write(f"muster {__version__}\n")
        return 0
    code, text = refuse_arguments(os.environ, arguments)
    sys.stderr.write(text)
    return code


def _refuse_old_ground() -> None:
    """One line and code 100 where muster cannot run, before anything that would not even import."""
    from muster.contract.support import EXIT_CODE, unsupported

    reason = unsupported()
    if reason:
        sys.stderr.write(f"ConfigError: {reason}\n")
        _leave(EXIT_CODE)


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code)
