"""A rank's end of a connection to a service: dials, proves the secret, moves frames."""

from __future__ import annotations

import hmac
import os
import select
import socket
import threading
import time
from contextlib import suppress

from muster_collectives.bootstrap import frames
from muster_collectives.bootstrap.frames import Frame, FrameError, Parser

_SEND_S = 60.0
_POLL_S = 3600.0  # the call has a bound of its own


class StrangerError(Exception):
    """Another program listens there, or another job's service."""


class Channel:
    """One connection; one thread may send while another receives."""

    def __init__(self, sock: socket.socket, max_body_bytes: int) -> None:
        self._sock = sock
        sock.setblocking(False)  # two threads with deadlines of their own
        self._parser = Parser(max_body_bytes)
        # a signal handler may come while its thread sends, and abort
        self._sending = threading.RLock()
        self._is_half_sent = False
        self._pid = os.getpid()

    def send(
        self, kind: int, head: bytes = b"", *bodies: memoryview | bytes, timeout_s: float = _SEND_S
    ) -> None:
        """Raises TimeoutError, OSError; ConnectionError in a child of the process that dialled, and
        where a frame was left half sent: nothing can follow it, so the connection is shut down."""
        if os.getpid() != self._pid:
            raise ConnectionError("this connection is the parent process's")
        size = sum(memoryview(body).nbytes for body in bodies)
        deadline = time.monotonic() + timeout_s
        if not self._sending.acquire(timeout=max(0.0, min(timeout_s, threading.TIMEOUT_MAX))):
            raise TimeoutError("another thread's frame does not leave")
        try:
            if self._is_half_sent:
                self.shutdown()
                raise ConnectionError("an earlier frame was left half sent")
            self._is_half_sent = True
            for part in (frames.header(kind, head, size), *bodies):
                self._send_all(memoryview(part).cast("B"), deadline)
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

    def local_host(self) -> str:
        """The address of this end."""
        return str(self._sock.getsockname()[0])

    def keep_alive(self) -> None:
        """What is sent leaves at once, and a host that is gone is noticed; never raises."""
        with suppress(OSError):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def shutdown(self) -> None:
        """Wakes a thread that receives; never raises."""
        if os.getpid() == self._pid:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shutdown()
        with suppress(OSError):
            self._sock.close()


def dial(
    host: str, port: int, rank: int, secret: bytes, timeout_s: float, max_body_bytes: int,
    try_s: float | None = None,
) -> Channel:  # fmt: skip
    """`try_s` (`timeout_s`) bounds each: to connect, and until the service greets. Once it has, it
    is ours and may be busy. Raises OSError where nobody listens, StrangerError where it is not our
    service."""
    deadline = time.monotonic() + timeout_s
    try_s = timeout_s if try_s is None else try_s
    channel = Channel(socket.create_connection((host, port), try_s), max_body_bytes)
    try:
        channel.keep_alive()
        _greet(channel, rank, secret, time.monotonic() + try_s, deadline)
    except (FrameError, TimeoutError) as error:
        channel.close()
        raise StrangerError(str(error)) from error
    except BaseException:
        channel.close()
        raise
    return channel


def _greet(channel: Channel, rank: int, secret: bytes, greeted: float, deadline: float) -> None:
    # the service speaks first, so a program of others is never sent anything
    server_nonce = frames.read_hello(bytes(_expect(channel, frames.HELLO, greeted).body))
    nonce = os.urandom(frames.NONCE_BYTES)
    channel.send(frames.ANSWER, b"", frames.answer(secret, server_nonce, nonce, rank))
    welcome = _expect(channel, frames.WELCOME, max(greeted, deadline))
    due = frames.proof(secret, b"service", server_nonce, nonce, rank)
    if not hmac.compare_digest(due, bytes(welcome.body)):
        raise FrameError("its proof is wrong")


def _expect(channel: Channel, kind: int, deadline: float) -> Frame:
    frame = channel.receive(deadline)
    if frame.kind == frames.REFUSED:
        raise FrameError(bytes(frame.body).decode(errors="replace"))
    if frame.kind != kind:
        raise FrameError(f"frame {frame.kind} came, {kind} was due")
    return frame
