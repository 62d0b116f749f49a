"""What a machine is short of when no process or thread can be started (F16)."""

from __future__ import annotations

import errno
import os

from muster.types.errors import LaunchError
from muster.types.values import NamedTuple


class Shortage(NamedTuple):
    """A resource of the machine that is used up, and what to do about it."""

    what: str
    fix: str


PROCESSES = Shortage(
    "the limit of processes is reached",
    "raise the limit of processes (ulimit -u, or the container's pids limit)",
)
_MEMORY = Shortage("no memory is left", "give the machine or the container more memory")
_FILES = Shortage("the limit of open files is reached", "raise the limit of files (ulimit -n)")
_OF_ERRNO = {
    errno.EAGAIN: PROCESSES,
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


def shortage(number: int) -> Shortage | None:
    """What is short when a start fails with this errno; None when nothing is."""
    return _OF_ERRNO.get(number)


def not_started(what: str, number: int) -> LaunchError:
    """The error of something (`what`) whose start failed with this errno."""
    short = shortage(number)
    if short is None:
        return LaunchError(f"{what} could not be started: {os.strerror(number)}")
    return LaunchError(f"{what} could not be started: {short.what}", short.fix)
