"""One connection on the server's side: frames in and out of a blocking socket, with deadlines."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count

from muster_collectives.wire import HEADER_BYTES
from muster_parameter_server.errors import ProtocolError
from muster_parameter_server.wire import frames
from muster_parameter_server.wire.frames import Dtype, Header, Kind, Run

IOV_LIMIT = 512  # of the kernel's 1,024
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class GoneError(Exception):
    """The peer has closed the connection, or did not move a byte within the time."""


class Channel:
    """One authenticated connection. Counts frames of both directions. Sending and reading raise
    GoneError, reading ProtocolError.

    `moved`: bytes that came in so far."""

    def __init__(self, sock: socket.socket) -> None:
        self.moved = 0
        self._sock = sock
        self._sent, self._received = count(1), count(1)  # numbers of the next frames

    def has_come(self, within_s: float) -> bool:
        """Waits until bytes, or the end, can be read; whether they can."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(1000 * within_s))

    def read(self, stall_s: float) -> tuple[Header, dict[str, object]]:
        """The next frame, which has to be text. `stall_s`: the longest pause within it."""
        header = self._header(stall_s)
        if header.kind is Kind.TENSOR:
            raise ProtocolError("a tensor came where text was due")
        text = bytearray(header.size_bytes)
        self.fill(memoryview(text), stall_s)
        return header, frames.read_text(text)

    def read_tensor(self, dtype: Dtype, into: memoryview, stall_s: float) -> None:
        """The next frame, which has to be this tensor, into memory that is there."""
        frames.require_tensor(self._header(stall_s), dtype, len(into) // dtype.item_bytes)
        self.fill(into, stall_s)

    def send(
        self, kind: Kind, message: Mapping[str, object], stall_s: float, tensors: Iterable[Run] = ()
    ) -> None:
        """Text and the tensors behind it, without a copy."""
        self._send_all(frames.parts_of(self._sent, kind, message, tensors), stall_s)

    def fill(self, into: memoryview, stall_s: float, end: float | None = None) -> None:
        """Reads exactly as many bytes as there is room for, until `end` of the monotonic clock."""
        try:
            self._sock.settimeout(stall_s)
            while len(into):
                if end is not None:
                    self._sock.settimeout(max(0.001, end - time.monotonic()))
                got = self._sock.recv_into(into)
                if not got:
                    raise GoneError("it closed the connection")
                self.moved += got
                into = into[got:]
        except OSError as error:
            raise GoneError(error.strerror or str(error)) from error

    def send_raw(self, data: bytes, stall_s: float) -> None:
        self._send_all([memoryview(data)], stall_s)

    def is_gone(self) -> bool:
        """Whether the peer has hung up; looks without reading or waiting."""
        poll = select.poll()
        poll.register(self._sock, _GONE)
        return bool(poll.poll(0))

    def wake(self) -> None:
        """Lets a thread that waits for bytes of this peer go on, as if the peer had ended."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def _header(self, stall_s: float) -> Header:
        data = bytearray(HEADER_BYTES)
        self.fill(memoryview(data), stall_s)
        return frames.decode(data, next(self._received))

    def _send_all(self, parts: list[memoryview], stall_s: float) -> None:
        try:
            self._sock.settimeout(stall_s)
            while parts:
                parts = rest(parts, self._sock.sendmsg(parts[:IOV_LIMIT]))
        except OSError as error:
            raise GoneError(error.strerror or str(error)) from error


def rest(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the parts after the first `done` bytes."""
    for number, part in enumerate(parts):
        if done < len(part):
            return [part[done:], *parts[number + 1 :]]
        done -= len(part)
    return []
