"""One call of a group at a time, and the one that would wait for itself: of a signal handler that
came in the midst of a call of the same thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from muster_collectives.runtime.errors import UsageError

BETWEEN = "a signal handler called this in the midst of another call of the same group"
FLAG = "have the handler set a flag, and act on it after the call"


class ReentrancyGuard:
    """A lock around calls of one group: `with turn:`. Raises UsageError in a signal handler that
    interrupted the holder, who could never give it up meanwhile; `refusal` makes it of what is
    wrong and the fix, so that it names the group.

    Reentrant below, so that a handler that comes before the call has begun, or after it, does its
    own, and one of another thread waits as with any lock.
    """

    def __init__(self, refusal: Callable[[str, str], UsageError] = UsageError) -> None:
        self._lock = threading.RLock()
        self._is_busy = False
        self._refusal = refusal

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._is_busy:
            self._lock.release()
            raise self._refusal(BETWEEN, FLAG)
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False
        self._lock.release()
