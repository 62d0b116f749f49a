"""`train` and `muster`: the only callers of exit."""

from __future__ import annotations

import os
import sys


def train() -> None:
    """The container's entry point: runs the job and exits with its code.

    Exits at once, without waiting for threads that a blocked disk or name server may hold.
    """
    arguments = sys.argv[1:]
    if arguments not in ([], ["train"]):
        _leave(_usage(arguments))
    import gc

    _hold_stop_signals()
    gc.disable()  # the import of a hundred modules makes no garbage worth three collections
    from muster.train_job import run

    gc.enable()
    _leave(run(os.environ).exit_code)


def main() -> None:
    """The command for people; `muster train` is `train`."""
    if sys.argv[1:2] == ["train"]:
        del sys.argv[1]
        train()
    from muster.commands.parser import main as run_command

    sys.exit(run_command(sys.argv[1:]))


def _hold_stop_signals() -> None:
    """Keeps a stop that comes early, which PID 1 would lose, until the supervisor listens.

    Once the job has its outcome the supervisor has them ignored: they change nothing.
    """
    import signal

    stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)


def _usage(arguments: list[str]) -> int:
    sys.stderr.write(
        f"train: unexpected arguments: {' '.join(arguments)}\n"
        "usage: train [train]\n"
        "  The job comes from /opt/ml/input/config; `muster --help` shows commands for people.\n"
    )
    return 100


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code)
