"""One attempt to connect to the leader: from the first packet to its welcome."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable

from muster.run.base.loop import Loop, Timer
from muster.run.channel import wire
from muster.run.channel.messages import WireError
from muster.run.channel.session import Frames, family


class Attempt:
    """A connection to one address that has proved nothing yet.

    `hear` receives each message of the handshake, `failed` the reason, both with this attempt; a
    refused connection is reported like any other.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        port: int,
        source: str,
        hear: Callable[[Attempt, list[object]], None],
        failed: Callable[[Attempt, str], None],
    ) -> None:
        self.address = address
        self.refused = False
        self.heard = 0  # messages
        self.parts: tuple[bytes, ...] = ()
        self._loop = loop
        self._target = (address, port)
        self._source = source
        self._hear = hear
        self._failed = failed
        self._sock = socket.socket(family(address), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._frames: Frames | None = None
        self._timer: Timer | None = None

    def begin(self, limit_s: float) -> None:
        """Connects without waiting."""
        self._sock.setblocking(False)
        silence = f"no answer in {limit_s:.1f} s"
        self._timer = self._loop.after(limit_s, lambda: self._fail(silence))
        try:
            if self._source:
                self._sock.bind((self._source, 0))
            self._sock.connect(self._target)
        except BlockingIOError:
            pass
        except OSError as error:
            # reported later, so that the follower never runs inside itself
            text = error.strerror or str(error)
            self.refused = isinstance(error, ConnectionRefusedError)
            self._timer.cancel()
            self._timer = self._loop.after(0, lambda: self._fail(text))
            return
        self._loop.watch(self._sock.fileno(), self._connected, write=True)

    def send(self, message: list[object]) -> None:
        if self._frames is not None:
            self._frames.send(message)

    def hand_over(self, key: bytes) -> Frames:
        """The connection, authenticated from here on."""
        assert self._frames is not None and self._timer is not None
        self._timer.cancel()
        self._frames.use_key(key)
        return self._frames

    def close(self) -> None:
        """Closes it; no call follows."""
        if self._timer is not None:
            self._timer.cancel()
        if self._frames is not None:
            self._frames.close()
        elif self._sock.fileno() >= 0:
            self._loop.forget(self._sock.fileno())
            self._sock.close()

    def _fail(self, why: str) -> None:
        self._failed(self, why)

    def _connected(self, events: int) -> None:
        self._loop.forget(self._sock.fileno())
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.refused = code == errno.ECONNREFUSED
            self._fail(os.strerror(code).lower())
            return
        if not events & (select.EPOLLOUT | select.EPOLLIN):
            self._fail("the connection ended")
            return
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames(
            self._loop, self._sock, wire.TO_LEADER, wire.TO_FOLLOWER, self._payload, self._fail
        )

    def _payload(self, fields: list[object]) -> None:
        self.heard += 1
        try:
            self._hear(self, fields)
        except (TypeError, ValueError) as error:
            raise WireError("a malformed handshake") from error
