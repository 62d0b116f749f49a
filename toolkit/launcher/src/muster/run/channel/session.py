"""One end of an established control connection, which may be re-established once it breaks.

Messages are numbered and kept until the other end has them, so that a connection that ends and
comes back within the reconnect time loses and repeats nothing.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable

from muster.run.base.loop import Loop
from muster.run.channel.messages import Message, WireError, from_wire, to_wire
from muster.run.channel.wire import (
    HELLO_LIMIT_BYTES,
    Opener,
    Sealer,
    decode,
    encode,
    encode_numbered,
)

READ_BYTES = 1 << 16


def family(address: str) -> socket.AddressFamily:
    """Of an IPv4 or IPv6 address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def host_port(address: str, port: int) -> str:
    """As people write it: `10.0.0.1:7776`, `[fd00::1]:7776`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class Frames:
    """Frames over a non-blocking socket. `on_payloads` gets each payload; `on_end` the reason."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        send_as: bytes,
        receive_as: bytes,
        on_payload: Callable[[list[object]], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.sock = sock
        self.sealer = Sealer(send_as)
        self.opener = Opener(receive_as)
        self.on_payload = on_payload
        self.on_end = on_end
        self._loop = loop
        self._out = bytearray()
        self.closed = False
        sock.setblocking(False)
        loop.watch(sock.fileno(), self._ready)

    def use_key(self, key: bytes) -> None:
        """From here on both directions are authenticated."""
        self.sealer.key = key
        self.opener.key = key

    def send(self, message: list[object]) -> None:
        """Queues one message; what the socket takes now leaves now."""
        self.send_payload(encode(message))

    def send_payload(self, payload: bytes) -> None:
        """The same for a message that is encoded already."""
        if self.closed:
            return
        self._out += self.sealer.frame(payload)
        self._flush()

    def close(self) -> None:
        """Closes without calling `on_end`."""
        if not self.closed:
            self.closed = True
            self._loop.forget(self.sock.fileno())
            self.sock.close()

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if not self.closed and events & ~select.EPOLLOUT:
            self._read()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not self.closed:
            self._loop.watch(self.sock.fileno(), self._ready, write=bool(self._out))

    def _read(self) -> None:
        try:
            # of a stranger no more than the one frame that it may send
            data = self.sock.recv(READ_BYTES if self.opener.key else HELLO_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not data:
            self._end("the connection ended")
            return
        self.opener.feed(data)
        try:
            while not self.closed:
                payload = self.opener.next()
                if payload is None:
                    return
                self.on_payload(decode(payload))
        except WireError as error:
            self._end(f"it sent {error}")

    def _end(self, why: str) -> None:
        if not self.closed:
            self.close()
            self.on_end(why)


class Session:
    """The numbered messages of one pair of hosts, over however many connections."""

    def __init__(self, deliver: Callable[[Message], None]) -> None:
        self.received = 0
        self.heard_s = time.monotonic()
        self.frames: Frames | None = None
        self._deliver = deliver
        self._sent = 0
        self._unheard: deque[tuple[int, bytes]] = deque()

    @property
    def confirmed(self) -> bool:
        """Whether the other end has said of every message that it arrived."""
        return not self._unheard

    def send(self, message: Message) -> None:
        """Sends now, or as soon as there is a connection again."""
        self.send_encoded(encode(to_wire(message)))

    def send_encoded(self, fields: bytes) -> None:
        """The same for a message that several sessions share, encoded by the caller."""
        self._sent += 1
        self._unheard.append((self._sent, fields))
        if self.frames is not None:
            self.frames.send_payload(encode_numbered(self._sent, self.received, fields))

    def attach(self, frames: Frames, peer_received: int) -> None:
        """Uses this connection from now on and sends again what the other end has not got. It is
        the caller who knows whether the other end was heard just now."""
        self.frames = frames
        self._forget(peer_received)
        for number, fields in self._unheard:
            frames.send_payload(encode_numbered(number, self.received, fields))

    def detach(self) -> None:
        """The connection is gone; messages wait."""
        if self.frames is not None:
            self.frames.close()
            self.frames = None

    def take(self, payload: list[object]) -> list[object] | None:
        """Handles a numbered message; gives back a heartbeat for the caller to answer.

        Raises WireError for a gap, which means that the peer is not who it says.
        """
        self.heard_s = time.monotonic()
        if payload[0] == "m" and len(payload) == 4:
            _, number, heard, fields = payload
            if type(number) is int and type(heard) is int and isinstance(fields, list):
                self._forget(heard)
                self._take_message(number, fields)
                return None
        elif payload[0] != "m" and len(payload) > 1 and type(payload[1]) is int:
            self._forget(payload[1])
            return payload
        raise WireError("a malformed frame")

    def _take_message(self, number: int, fields: list[object]) -> None:
        if number <= self.received:
            return  # sent again because the answer was lost
        if number != self.received + 1:
            raise WireError(f"message {number} after {self.received}")
        self.received = number  # also of what is refused: sent again it would be no better
        self._deliver(from_wire(fields))

    def _forget(self, heard: int) -> None:
        while self._unheard and self._unheard[0][0] <= heard:
            self._unheard.popleft()
