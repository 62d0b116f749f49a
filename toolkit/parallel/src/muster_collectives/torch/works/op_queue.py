"""The order of a group's operations, and on which thread each of them runs.

One turn: the core takes one call of a group at a time. One queue: what was begun with async_op and
is not over yet. Whoever has the turn does the queue first, so operations run in the order in which
they were begun. Three threads may do so: one that makes a synchronous call, one that waits for a
queued operation, and the group's lane thread.

The calls of an operation are posted at once to a thread of the core, which needs no lock of Python;
what has the turn waits for their end, then does what is left in Python: copies, futures. Not posted
but run in their turn are operations that need Python before their calls: a copy of a tensor that is
not contiguous while others are queued, a barrier after work on a GPU, all that come after such a
one, and all of a group without a core.

* Eager lane (more processors than ranks): both threads begin at once.
* Lazy lane (each rank has one processor or less): a hand-over to another thread costs more than it
  gains, so the thread that waits runs the operation itself. The others come after GRACE_S all the
  same, for a program that begins an operation and then does something for which its peers wait.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster_collectives.binding.async_calls import Async
from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.errors import CollectiveError, UsageError
from muster_collectives.runtime.reentrancy import ReentrancyGuard
from muster_collectives.torch.ops.lowered import LoweredOp
from muster_collectives.torch.works.work import QueuedWork

GRACE_S = 0.002
CLOSE_S = 1.0  # how long a close waits for the lane thread
IDLE_S = 1.0  # without work, until the lane thread ends: groups at rest cost none


class OpQueue:
    """The operations of one group."""

    def __init__(self, name: str, eager: bool, communicator: Communicator | None) -> None:
        """Without a communicator nothing is submitted."""
        self.turn = ReentrancyGuard(
            lambda what, fix: UsageError(f"group {name!r}: {what}", fix, group=name)
        )
        self.queue: deque[QueuedWork] = deque()
        self.eager = eager
        self.is_used = False  # until the first submit no other thread of ours uses the core
        self._name = name
        self._communicator = communicator
        # of operations in Python's hands, one that runs now included: what comes after them waits.
        # The lock is reentrant: a signal handler may submit as well
        self._held = 0
        self._changing = threading.RLock()
        self._unfinished: list[QueuedWork] = []  # refused, and the core may still use their memory
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # a signal handler may submit
        self._ended: BaseException | None = None

    def run(self, action: Callable[[], None]) -> None:
        """Now, on this thread, after all that is queued."""
        with self.exclusive():
            action()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The caller is the one who uses the core, between two operations."""
        while True:
            if self.queue:
                self.advance()
            with self.turn:
                if self._hold():
                    try:
                        yield
                    finally:
                        self._let_go()
                    return

    def submit(self, plan: LoweredOp, limit_s: float) -> QueuedWork:
        """Queued; raises nothing, the work does."""
        self.is_used = True
        with self._changing:
            ended = self._ended
            try:
                begun = None if ended is not None else self._prepare(plan, limit_s)
            except CollectiveError as error:
                begun, ended = None, error
            if begun is None:
                assert self._communicator is not None
                action = functools.partial(plan.perform, self._communicator.run, limit_s)
            else:
                action = functools.partial(_finish, begun, plan)
            is_held = begun is None or bool(plan.after)
            work = QueuedWork(
                action, plan.outputs, self._help_out, self._runs_at_once, begun, is_held
            )
            try:
                if begun is not None:
                    begun.post(0.0 if self.eager else GRACE_S)
            except CollectiveError as error:
                ended = error
            finally:  # also where a signal handler raises: what the core has is in the queue
                if ended is None and (begun is None or begun.is_posted):
                    self._held += is_held
                    self.queue.append(work)
        if ended is not None:
            work.refuse(ended)
            work.publish()
            return work
        self._wakes.put(True)
        if self._thread is None:
            self._start()
        return work

    def advance(self, until: QueuedWork | None = None) -> None:
        """Runs what is queued, in order; with `until`, up to this one."""
        while self.queue and not (until is not None and until.is_completed()):
            with self.turn:
                if not self.queue:
                    return
                work = self.queue[0]
                work.until_done()
                if not self._take(work):
                    continue
                work.perform()
                self._let_go(work.is_held)
            work.publish()

    def close(self, error: BaseException, finish: bool) -> None:
        """Ends the lane thread. `finish`: runs what is queued first; what is left gets `error`."""
        if finish:
            self.advance()
        self._ended = error
        with self._starting:  # so not while it looks whether it may end
            thread, self._thread = self._thread, None
        if thread is not None:
            self._wakes.put(False)
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)
        while self.queue:
            work = self.queue[0]
            if self._take(work):
                self._unfinished.append(work)
                work.refuse(error)
                work.publish()

    def _prepare(self, plan: LoweredOp, limit_s: float) -> Async | None:
        """None: it is to be run in its turn."""
        if self._held or plan.first is not None or self._communicator is None:
            return None
        if plan.before:
            if self.queue:  # one of them may write what is to be copied
                return None
            plan.copy_in()
        return Async(self._communicator, plan.calls, limit_s)

    def _hold(self) -> bool:
        """For who has the turn: nothing is queued, and nothing will be posted meanwhile."""
        with self._changing:
            if self.queue:
                return False
            self._held += 1
            return True

    def _let_go(self, count: int = 1) -> None:
        with self._changing:
            self._held -= count

    def _take(self, work: QueuedWork) -> bool:
        """Out of the queue, unless it was refused meanwhile."""
        with self._changing:
            if not self.queue or self.queue[0] is not work:
                return False
            self.queue.popleft()
            return True

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._follow, name=f"muster-{self._name}", daemon=True)
            self._thread = thread  # before its first look at whether it may end
            try:
                thread.start()
            except RuntimeError:  # no more threads here: who waits runs it, the next submit tries
                self._thread = None

    def _follow(self) -> None:
        """The lane thread."""
        while True:
            try:
                goes_on = self._wakes.get(timeout=IDLE_S)
            except queue.Empty:
                if self._can_end():
                    return
                continue
            if not goes_on:
                return
            if not self.eager:
                time.sleep(GRACE_S)
            self.advance()

    def _can_end(self) -> bool:
        """For the lane thread, which is none any more where it can. Who submits puts first and then
        looks for the thread, and here it is the other way round: so one of them sees the other."""
        with self._starting:
            mine, self._thread = self._thread, None
            if self._wakes.empty():
                return True
            self._thread = mine
            return False

    def _runs_at_once(self) -> bool:
        """Whether who asks for a future runs the operation himself: on the lane thread (in a
        callback) nobody else would."""
        return not self.eager or threading.current_thread() is self._thread

    def _help_out(self, work: QueuedWork, timeout_s: float | None) -> bool:
        """Until `work` is over: runs the queue up to it. With a limit the lane thread does, since
        what runs on this thread could not be left in time."""
        if timeout_s is None or threading.current_thread() is self._thread:
            self.advance(work)
        return work.until_over(timeout_s)


def _finish(begun: Async, plan: LoweredOp) -> None:
    begun.end()
    plan.copy_out()
