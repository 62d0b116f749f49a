"""The futures of a group's sends and receives: one thread settles each when its transfer ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from muster_collectives.core.communicator import Ends, Request
from muster_collectives.core.errors import CollectiveError

__all__ = ["Follower"]


class Follower:
    """Of one group. The thread begins with the first future and ends with the group; it is a
    daemon and never keeps a process alive.

    Callbacks of a future run on it, and other futures wait meanwhile. One that asks for another
    future may wait for it: then a new thread follows on, and this one ends after the callback.
    """

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._settles: dict[Request, Callable[[], None]] = {}
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    def follow(self, request: Request, settle: Callable[[], None]) -> None:
        """`settle` is called once, when `request` has ended: by the thread, or at once. It must
        not raise."""
        if request.done():  # always so in a child of the process, where there is no such thread
            settle()
            return
        with self._changing:
            self._settles[request] = settle
            if self._thread is None or self._thread is threading.current_thread():
                self._thread = threading.Thread(
                    target=self._run, name="muster-transfers", daemon=True
                )
                self._thread.start()
        try:
            is_told = self._ends.follow(request)
        except CollectiveError:  # it was closed meanwhile; or no memory, and this thread waits
            is_told = False
        if not is_told:
            self._settle(request)

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            request = self._ends.next()
            if request is None:  # all have ended with the group
                break
            self._settle(request)
            del request  # what it holds shall not live until the next one
        else:
            return
        with self._changing:
            left = tuple(self._settles)
        for request in left:
            self._settle(request)

    def _settle(self, request: Request) -> None:
        with self._changing:
            settle = self._settles.pop(request, None)
        if settle is not None:
            settle()
