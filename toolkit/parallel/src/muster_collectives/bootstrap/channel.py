"""A rank's end of a connection to rank 0's store: dials, proves the secret, moves frames."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress

from muster_collectives.wire import Frame, FrameError, Parser, Protocol

PROTOCOL = Protocol(b"mucs", 4, max_head_bytes=64)
MAX_ASKED_BYTES = 4 << 20  # of what a rank says in one frame
MAX_TOLD_BYTES = 64 << 20  # of an answer
_SEND_S = 60.0
_POLL_S = 3600.0  # the call has a bound of its own


class StrangerError(Exception):
    """Another program listens there, or another job's service."""


class Channel:
    """One connection; one thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)  # two threads with deadlines of their own
        self._parser = Parser(PROTOCOL, MAX_TOLD_BYTES)
        self._sent = 0
        # a signal handler may come while its thread sends, and abort
        self._sending = threading.RLock()
        self._is_half_sent = False
        self._pid = os.getpid()

    def send(
        self, kind: int, head: bytes = b"", body: bytes = b"", timeout_s: float = _SEND_S
    ) -> None:
        """Raises TimeoutError, OSError; ConnectionError in a child of the process that dialled, and
        where a frame was left half sent: nothing can follow it, so the connection is shut down."""
        if os.getpid() != self._pid:
            raise ConnectionError("this connection is the parent process's")
        deadline = time.monotonic() + timeout_s
        if not self._sending.acquire(timeout=max(0.0, min(timeout_s, threading.TIMEOUT_MAX))):
            raise TimeoutError("another thread's frame does not leave")
        try:
            if self._is_half_sent:
                self.shutdown()
                raise ConnectionError("an earlier frame was left half sent")
            self._is_half_sent = True
            self._sent += 1
            header = PROTOCOL.header(self._sent, kind, len(body), len(head))
            for part in (header + head, body):
                self._send_all(memoryview(part), deadline)
            self._is_half_sent = False
        finally:
            self._sending.release()

    def _send_all(self, part: memoryview, deadline: float) -> None:
        while part.nbytes:
            try:
                part = part[self._sock.send(part) :]
            except BlockingIOError:
                self._ready(select.POLLOUT, deadline)

    def receive(self, deadline: float) -> Frame:
        """The next frame. Raises TimeoutError at `deadline` (monotonic), OSError, FrameError."""
        while True:
            try:
                count = self._sock.recv_into(self._parser.room())
            except BlockingIOError:
                self._ready(select.POLLIN, deadline)
                continue
            if not count:
                raise ConnectionResetError("the other side closed the connection")
            frame = self._parser.took(count)
            if frame is not None:
                return frame

    def _ready(self, event: int, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the other side does not answer")
        poll = select.poll()
        poll.register(self._sock, event)
        poll.poll(min(left_s, _POLL_S) * 1000)

    def shutdown(self) -> None:
        """Wakes a thread that receives; never raises."""
        if os.getpid() == self._pid:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shutdown()
        with suppress(OSError):
            self._sock.close()


def dial(host: str, port: int, rank: int, secret: bytes, timeout_s: float, try_s: float) -> Channel:
    """`try_s` bounds each: to connect, and until the service greets. Once it has, it is ours and
    may be busy, for `timeout_s` in all. Raises OSError where nobody listens, StrangerError where it
    is not our service."""
    deadline = time.monotonic() + timeout_s
    sock = socket.create_connection((host, port), try_s)
    try:
        with suppress(OSError):  # what is sent leaves at once, and a host that is gone is noticed
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        greeted = time.monotonic() + try_s
        PROTOCOL.prove(sock, secret, rank, 0, greeted, max(greeted, deadline))
        return Channel(sock)
    except (FrameError, TimeoutError) as error:
        sock.close()
        raise StrangerError(str(error)) from error
    except BaseException:
        sock.close()
        raise
