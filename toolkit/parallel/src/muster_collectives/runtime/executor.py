"""A thread that runs jobs in the order in which they were given, and ends when it has had none for
a while: the next job starts another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class SerialExecutor:
    """A thread that runs jobs one after the other. `closed` and `busy` are what errors say of a job
    that comes after `close`, and of one that still runs at its end. A job must not raise: nobody
    would hear of it."""

    def __init__(self, name: str, idle_s: float, closed: str, busy: str) -> None:
        self._name, self._idle_s = name, idle_s
        self._closed, self._busy = closed, busy
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, job: Callable[[], None]) -> None:
        """Raises RuntimeError after `close`."""
        with self._changed:
            if self._closing:
                raise RuntimeError(self._closed)
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout_s: float = 60.0) -> None:
        """Ends the thread once its jobs are done. Raises TimeoutError."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                raise TimeoutError(f"{self._busy} after {timeout_s:g} s")

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # what it holds shall not live until the next one

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            if not self._jobs and not self._closing:
                self._changed.wait(self._idle_s)
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            return None
