"""The order of a group's operations, and on which thread each of them runs.

One turn: the core takes one call of a group at a time. One queue: what was begun with async_op and
not run yet. Whoever has the turn runs the queue first, so operations run in the order in which
they were begun, on whatever thread. Three threads may do so: one that makes a synchronous call, one
that waits for a queued operation, and the group's lane thread.

* Eager lane (more processors than ranks): a queued operation wakes the lane thread at once.
* Lazy lane (each rank has one processor or less): a hand-over to another thread costs more than it
  gains, so the thread that waits runs the operation itself. The lane thread comes after GRACE_S all
  the same, for a program that begins an operation and then does something for which its peers wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from muster_collectives.core.errors import UsageError
from muster_collectives.core.turn import Turn
from muster_collectives.torch.work import Pending

__all__ = ["GRACE_S", "Lane"]

GRACE_S = 0.002
CLOSE_S = 1.0  # how long a close waits for the lane thread


class Lane:
    """The operations of one group."""

    def __init__(self, name: str, eager: bool) -> None:
        self.turn = Turn(lambda what, fix: UsageError(f"group {name!r}: {what}", fix, group=name))
        self.queue: deque[Pending] = deque()
        self.eager = eager
        self.is_used = False  # until the first submit no other thread of ours uses the core
        self._name = name
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._ended: BaseException | None = None

    def run(self, action: Callable[[], None]) -> None:
        """Now, on this thread, after all that is queued."""
        while True:
            if self.queue:
                self.advance()
            with self.turn:
                if not self.queue:
                    action()
                    return

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The caller is the one who uses the core, between two operations."""
        while True:
            if self.queue:
                self.advance()
            with self.turn:
                if not self.queue:
                    yield
                    return

    def submit(self, action: Callable[[], None], outputs: Sequence[Any]) -> Pending:
        """Queued; raises nothing, the work does."""
        work = Pending(action, outputs, self._help_out, self._runs_at_once)
        if self._ended is not None:
            work.refuse(self._ended)
            work.publish()
            return work
        self.is_used = True
        self.queue.append(work)
        if self._thread is None:
            self._start()
        self._wakes.put(True)
        return work

    def advance(self, until: Pending | None = None) -> None:
        """Runs what is queued, in order; with `until`, up to this one."""
        while self.queue and not (until is not None and until.is_completed()):
            with self.turn:
                if not self.queue:
                    return
                work = self.queue.popleft()
                work.perform()
            work.publish()

    def close(self, error: BaseException, finish: bool) -> None:
        """Ends the lane thread. `finish`: runs what is queued first; what is left gets `error`."""
        if finish:
            self.advance()
        self._ended = error
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wakes.put(False)
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)
        while self.queue:
            try:
                work = self.queue.popleft()
            except IndexError:
                return
            work.refuse(error)
            work.publish()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_follow,
                    args=(self._wakes, self.advance, 0.0 if self.eager else GRACE_S),
                    name=f"muster-{self._name}",
                    daemon=True,
                )
                self._thread.start()

    def _runs_at_once(self) -> bool:
        """Whether who asks for a future runs the operation himself: on the lane thread (in a
        callback) nobody else would."""
        return not self.eager or threading.current_thread() is self._thread

    def _help_out(self, work: Pending, timeout_s: float | None) -> bool:
        """Until `work` is over: runs the queue up to it. With a limit the lane thread does, since
        what runs on this thread could not be left in time."""
        if timeout_s is None or threading.current_thread() is self._thread:
            self.advance(work)
        return work.until_over(timeout_s)


def _follow(wakes: queue.SimpleQueue[bool], advance: Callable[[], None], grace_s: float) -> None:
    while wakes.get():
        if grace_s:
            time.sleep(grace_s)
        advance()
