"""A small event loop: descriptors, timers, and calls handed over from other threads.

Everything of the supervisor but the log pump happens on this one thread, so that no state needs
a lock. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable


class Timer:
    """One pending call; `cancel` may be called at any time, also twice."""

    __slots__ = ("at_s", "call", "order")

    def __init__(self, at_s: float, order: int, call: Callable[[], None]) -> None:
        self.at_s = at_s
        self.order = order
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None

    def __lt__(self, other: Timer) -> bool:
        return (self.at_s, self.order) < (other.at_s, other.order)


class Loop:
    """Runs callbacks until `stop`. Only `post` may be called from another thread.

    `stop` counts from the first moment: a job may be over before its loop was started. `read_s`:
    what had come by then was handed to its handlers. Timers that judge a silence go by it, not by
    the clock: the thread may have stood still since, with the words of others unread.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._order = 0
        self._posted: deque[Callable[[], None]] = deque()
        self._new: set[int] = set()  # descriptors whose owner came during this round of events
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopped = False
        self._closed = False
        self._wake_lock = threading.RLock()  # signal handlers post while this thread may post
        self.read_s = time.monotonic()
        self.watch(self._wake_r, self._drain_wake)

    @property
    def wake_fd(self) -> int:
        """The descriptor to write to from a signal handler (`signal.set_wakeup_fd`)."""
        return self._wake_w

    def watch(self, fd: int, handler: Callable[[int], None], write: bool = False) -> None:
        """Calls `handler(events)` when `fd` can be read (and written, when asked)."""
        events = select.EPOLLIN | (select.EPOLLOUT if write else 0)
        if fd in self._handlers:
            self._poll.modify(fd, events)
        else:
            self._poll.register(fd, events)
            self._new.add(fd)
        self._handlers[fd] = handler

    def forget(self, fd: int, handler: Callable[[int], None] | None = None) -> None:
        """Stops watching `fd`; call it before closing. With a handler only if it is still that
        one's: it may have been closed since, and be another's now."""
        if handler is not None and self._handlers.get(fd) is not handler:
            return
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Calls once, `delay_s` from now."""
        self._order += 1
        timer = Timer(time.monotonic() + delay_s, self._order, call)
        heapq.heappush(self._timers, timer)
        return timer

    def post(self, call: Callable[[], None]) -> None:
        """Calls soon, on the loop's thread; safe from any thread, and nothing after `close`."""
        with self._wake_lock:  # else the descriptor may be somebody else's by now
            if self._closed:
                return
            self._posted.append(call)
            try:
                os.write(self._wake_w, b"\0")
            except BlockingIOError:
                pass  # the pipe is full of wake-ups already

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Runs until `stop` is called, and not at all when that was before."""
        while not self._stopped:
            self._run_posted()
            self._run_timers()
            if self._stopped:
                break
            wait = 0.0 if self._posted else self._time_to_next()
            began_s = time.monotonic()
            self._new.clear()
            for fd, events in self._poll.poll(wait, len(self._handlers)):
                handler = self._handlers.get(fd)
                if handler is not None and fd not in self._new:  # else another one's event
                    handler(events)
            self.read_s = began_s
        self._stopped = False  # obeyed: it may run again

    def close(self) -> None:
        with self._wake_lock:
            self._closed = True
            self._poll.close()
            os.close(self._wake_r)
            os.close(self._wake_w)

    def _run_posted(self) -> None:
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].at_s <= now:
            call = heapq.heappop(self._timers).call
            if call is not None:
                call()

    def _time_to_next(self) -> float | None:
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].at_s - time.monotonic())

    def _drain_wake(self, _events: int) -> None:
        try:
            os.read(self._wake_r, 4096)
        except BlockingIOError:
            pass
