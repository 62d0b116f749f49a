"""A thread that runs a group's queued calls in the order in which they were given."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from muster_collectives.core.errors import ClosedError

T = TypeVar("T")
_CLOSING_S = 5.0


class Lane:
    """The thread begins with the first call and is a daemon: it never keeps a process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_busy = False
        self._pid = os.getpid()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Its result or error, when its turn has come. Raises ClosedError."""
        future: Future[T] = Future()
        with self._changed:
            if self._is_closed or os.getpid() != self._pid:
                raise self._closed()
            self._queue.append((call, future))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"collectives-{self._name}", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        return future

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or under way, so a call made directly keeps the order."""
        return not self._queue and not self._is_busy

    def close(self, timeout_s: float = _CLOSING_S) -> bool:
        """What has not begun ends with ClosedError; what is under way is waited for. Never raises.

        False: it did not end in time (abort the group first).
        """
        with self._changed:
            self._is_closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for _, future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._closed())
        thread = self._thread
        if thread is None or thread is threading.current_thread() or os.getpid() != self._pid:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                while not self._queue and not self._is_closed:
                    self._changed.wait()
                if not self._queue:
                    return
                call, future = self._queue.popleft()
                self._is_busy = True
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del call, future  # what they hold shall not live until the next call

    def _closed(self) -> ClosedError:
        return ClosedError(
            f"the lane of {self._name} is closed", "make the group again before using it"
        )
