"""Our stdout or stderr: every byte in its order; a reader that is blocked never blocks us."""

from __future__ import annotations

import os
import select
import time
from collections import deque

PIECE_BYTES = 4096  # a pipe that polls as writable takes so much without blocking
FULL_BYTES = 1 << 20


class Outlet:
    """A queue of bytes in front of a descriptor that stays blocking, since others share it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def waiting(self) -> bool:
        """Bytes wait for the reader."""
        return self._size > 0

    @property
    def full(self) -> bool:
        """So many that nothing more should be read for now."""
        return self._size > FULL_BYTES

    def write(self, data: bytes) -> None:
        """Writes what the reader takes now and keeps the rest."""
        if self._closed or not data:
            return
        self._queue.append(data)
        self._size += len(data)
        self.drain()

    def drain(self) -> None:
        """Writes as much as can be written without waiting."""
        while self._queue and self._poll.poll(0):
            data = self._queue[0]
            try:
                count = os.write(self.fd, data[:PIECE_BYTES])
            except OSError:
                self._close()  # nobody reads any more; the record has it all
                return
            self._size -= count
            if count == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[count:]

    def flush(self, limit_s: float) -> None:
        """Waits until everything is written, for at most `limit_s`."""
        limit = time.monotonic() + limit_s
        while self._queue and (left := limit - time.monotonic()) > 0:
            self._poll.poll(left * 1000)
            self.drain()

    def _close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._size = 0
