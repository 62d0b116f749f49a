"""The futures of a group's sends and receives: threads of it settle each when its transfer ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from muster_collectives.binding.requests import Ends, Request
from muster_collectives.runtime.errors import CollectiveError

__all__ = ["Follower"]

_SPARE = 2  # threads that wait at most; a second one, so that none is made for each end


class Follower:
    """Threads that settle the futures of one group's transfers. Threads begin with the first
    future and end with the group; they are daemons and never keep a process alive.

    Callbacks of a future run on the thread that settles it, and may wait for other futures: as
    long as one is pending, a thread waits for the next end."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._settles: dict[Request, Callable[[], None]] = {}
        self._changing = threading.Lock()
        self._waiting: set[threading.Thread] = set()

    def follow(self, request: Request, settle: Callable[[], None]) -> None:
        """`settle` is called once, when `request` has ended: by a thread, or at once. Raises what
        it raises then, or RuntimeError where no thread can start; nothing is followed then."""
        if request.done():  # always so in a child of the process, where there is no such thread
            settle()
            return
        try:
            with self._changing:
                self._settles[request] = settle
                self._keep_waiting()
            is_told = self._ends.follow(request)
        except CollectiveError:  # it was closed meanwhile; or no memory, and this thread waits
            is_told = False
        except BaseException:
            self._settles.pop(request, None)
            raise
        if not is_told:
            own = self._settles.pop(request, None)
            if own is not None:
                own()

    def _keep_waiting(self) -> None:
        """Under the lock."""
        if not self._settles or self._waiting:
            return
        thread = threading.Thread(target=self._run, name="muster-transfers", daemon=True)
        self._waiting.add(thread)
        try:
            thread.start()
        except BaseException:
            self._waiting.discard(thread)
            raise

    def _run(self) -> None:
        is_open = True
        while is_open:
            request = self._ends.next()
            is_open = request is not None
            with self._changing:
                self._waiting.discard(threading.current_thread())
                ended = [request] if request is not None else list(self._settles)
                settles = [self._settles.pop(each, None) for each in ended]
                with suppress(RuntimeError):  # no other thread can start: this one comes back
                    self._keep_waiting()
            for settle in settles:
                if settle is not None:
                    with suppress(BaseException):  # it is in the future already
                        settle()
            del request, ended, settles  # what they hold shall not live until the next one
            settle = None
            with self._changing:
                if len(self._waiting) >= _SPARE:
                    return
                self._waiting.add(threading.current_thread())
