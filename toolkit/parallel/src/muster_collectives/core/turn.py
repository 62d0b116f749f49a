"""One call of a group at a time, and the one that would wait for itself: of a signal handler that
came in the midst of a call of the same thread."""

from __future__ import annotations

import sys
import threading
from types import CodeType

from muster_collectives.core.errors import UsageError

BETWEEN = "a signal handler called this in the midst of another call of the same group"
FLAG = "have the handler set a flag, and act on it after the call"


class Turn:
    """A lock around calls of one group: `with turn:`. Raises UsageError in a signal handler that
    interrupted the holder, who could never give it up meanwhile.

    Reentrant below, so that a handler that comes before the call has begun, or after it, does its
    own, and one of another thread waits as with any lock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_busy = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._is_busy:
            self._lock.release()
            raise UsageError(BETWEEN, FLAG)
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False
        self._lock.release()


def is_inside(code: CodeType, owner: object) -> bool:
    """Whether a caller of the caller of this thread runs `code` as a method of `owner`."""
    frame = sys._getframe(2).f_back
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False
