"""What `muster submit --on hosts:FILE` and `muster run --attended` say to one another.

One ssh connection carries it: MARK once from the host, since a login may print before it, then
frames both ways: one byte for the kind, four for the length, and the content. Either end takes
SILENCE_S without a frame for the end of the connection; BEAT is there to be sent meanwhile.
"""

from __future__ import annotations

import json
import os
import select
import threading
from typing import Any

MARK = b"\nmuster-attended 1\n"
BEAT_S, SILENCE_S = 10.0, 120.0
HEADER = 5  # bytes
MAX_BYTES = 1 << 20  # of a frame's content
MAX_NOISE_BYTES = 1 << 16  # before MARK

BEAT = b"."
# of the desk
REQUEST, CODE, START, STOP, KILL, DONE = b"R", b"C", b"G", b"S", b"K", b"D"
# of a host
HELLO, READY, REFUSED, OUT, ERR, ENDED, ARCHIVE, PACKED = (
    b"H", b"Y", b"N", b"O", b"E", b"X", b"A", b"Z",
)  # fmt: skip


class Sender:
    """Any thread may send."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Content of any length, in as many frames as it takes. Raises OSError."""
        for start in range(0, len(content) or 1, MAX_BYTES):
            piece = memoryview(content)[start : start + MAX_BYTES]
            left = memoryview(kind + len(piece).to_bytes(4, "big") + piece)
            with self._lock:
                while left:
                    left = left[os.write(self._fd, left) :]

    def beat(self) -> None:
        """A BEAT, unless somebody is sending, or nothing can be sent: then the other end reads
        nothing, and the caller has other things to do than to wait. Raises OSError."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                os.write(self._fd, BEAT + bytes(HEADER - 1))
        finally:
            self._lock.release()

    def tell(self, kind: bytes, **fields: object) -> None:
        """A frame of JSON. Raises OSError."""
        self.send(kind, json.dumps(fields).encode())


class Receiver:
    """For one thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()

    def find_mark(self) -> bytes | None:
        """What came before MARK, None where MARK does not come."""
        while (place := self._data.find(MARK)) < 0:
            if len(self._data) > MAX_NOISE_BYTES or not self._more():
                return None
        noise = bytes(self._data[:place])
        del self._data[: place + len(MARK)]
        return noise

    def noise(self) -> bytes:
        """What came in place of MARK."""
        return bytes(self._data)

    def next(self) -> tuple[bytes, bytes]:
        """(kind, content), no BEAT; (b"", b"") once the connection has ended."""
        while True:
            length = int.from_bytes(self._data[1:HEADER], "big")
            if length > MAX_BYTES:
                return b"", b""
            if len(self._data) < HEADER + length:
                if not self._more():
                    return b"", b""
                continue
            kind, content = bytes(self._data[:1]), bytes(self._data[HEADER : HEADER + length])
            del self._data[: HEADER + length]
            if kind != BEAT:
                return kind, content

    def _more(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        try:
            if not poll.poll(SILENCE_S * 1000):
                return False
            data = os.read(self._fd, MAX_BYTES)
        except OSError:
            return False
        self._data += data
        return bool(data)


def fields_of(content: bytes) -> dict[str, Any]:
    """What `tell` sent; empty where it is nothing of that kind."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
