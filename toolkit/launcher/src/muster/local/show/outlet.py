"""stdout or stderr: every byte in its order; a reader that is blocked never blocks the writer."""

from __future__ import annotations

import os
import select
import time
from collections import deque

PIECE_BYTES = 4096  # a pipe that polls as writable takes so much without blocking
SHARED_TERMINAL_BYTES = 1  # and a terminal
FULL_BYTES = 1 << 20
STALLED_S = 5.0


class Outlet:
    """A queue of bytes in front of a descriptor that stays blocking, since others share it.

    A pipe that is not read holds back what writes. A terminal that takes nothing for a while, since
    it was stopped or its connection hangs, blocks no one: what it does not take is left out.
    """

    def __init__(self, fd: int) -> None:
        self._is_terminal = os.isatty(fd)
        self._piece_bytes = PIECE_BYTES
        self.fd = fd
        if self._is_terminal:
            self.fd, self._piece_bytes = _own_terminal(fd)
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._taken_at = time.monotonic()
        self._closed = False
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLOUT)

    @property
    def waiting(self) -> bool:
        """Bytes wait for the reader."""
        return self._size > 0

    @property
    def full(self) -> bool:
        """So many that nothing more should be read for now."""
        return self._size > FULL_BYTES and not self._is_stalled

    @property
    def _is_stalled(self) -> bool:
        """A terminal that does not take anything any more."""
        late = time.monotonic() - self._taken_at > STALLED_S
        return self._is_terminal and late and self._size > FULL_BYTES

    def write(self, data: bytes) -> None:
        """Writes what the reader takes now and keeps the rest."""
        if self._closed or not data:
            return
        if self._is_stalled:
            self._left_out += len(data)
            self.drain()
            return
        if not self._queue:
            self._taken_at = time.monotonic()
        self._put(data)
        self.drain()

    def drain(self) -> None:
        """Writes as much as can be written without waiting."""
        while self._queue and self._poll.poll(0):
            data = self._queue[0]
            try:
                count = os.write(self.fd, data[: self._piece_bytes])
            except BlockingIOError:
                return
            except OSError:
                self._close()  # the reader is gone; the record has it all
                return
            self._taken_at = time.monotonic()
            self._size -= count
            if count == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[count:]
            if self._left_out and not self._queue:
                text = f"muster local: {self._left_out} bytes were not shown; the logs have them\n"
                self._left_out = 0
                self._put(text.encode())

    def flush(self, limit_s: float) -> None:
        """Waits until everything is written, for at most `limit_s`."""
        limit = time.monotonic() + limit_s
        while self._queue and (left := limit - time.monotonic()) > 0:
            self._poll.poll(left * 1000)
            self.drain()

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self._size += len(data)

    def _close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._size = 0


def _own_terminal(fd: int) -> tuple[int, int]:
    """(descriptor, bytes of a piece): the terminal once more, under separate flags, so that
    nothing waits for it; where that is refused, as after `su`, itself, a byte at a time."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{fd}", flags), PIECE_BYTES
    except OSError:
        return fd, SHARED_TERMINAL_BYTES
