"""The store that rank 0 runs in a thread: keys are set once in a while and waited for.

Bounds: a value has at most 1 MiB, all of them 256 MiB, a key 512 bytes. A rank that has
set or asked for a key may not connect again.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple

from muster_collectives.bootstrap.questions import NUMBER
from muster_collectives.bootstrap.service import Handler, Peer, Service
from muster_collectives.wire import FIRST_KIND, Frame, FrameError

SET, GET, VALUE, ABSENT, DONE, FULL = range(FIRST_KIND, FIRST_KIND + 6)
MAX_VALUE_BYTES = 1 << 20
MAX_KEY_BYTES = 512
_MAX_TOTAL_BYTES = 256 << 20
WAIT = struct.Struct("!d")


class _Waiting(NamedTuple):
    """`head` is the question's, which the answer repeats: a number of the rank's, and the key."""

    peer: Peer
    head: bytes
    key: bytes
    until: float


class Keys(Handler):
    """The keys and who waits for them."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._total_bytes = 0
        self._waiting: list[_Waiting] = []

    def frame(self, peer: Peer, frame: Frame) -> None:
        key = frame.head[NUMBER.size :]
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise FrameError(f"a key of {len(key)} bytes")
        if frame.kind == SET:
            self._set(peer, frame.head, key, bytes(frame.body))
        elif frame.kind == GET and len(frame.body) == WAIT.size:
            (wait_s,) = WAIT.unpack(frame.body)
            self._get(peer, frame.head, key, wait_s)
        else:
            raise FrameError(f"frame {frame.kind} is none of a rank's")

    def gone(self, peer: Peer) -> None:
        self._waiting = [each for each in self._waiting if each.peer is not peer]

    def tick(self, now: float) -> None:
        late = [each for each in self._waiting if each.until <= now]
        if late:
            self._waiting = [each for each in self._waiting if each.until > now]
        for each in late:
            each.peer.queue(ABSENT, each.head)

    def _set(self, peer: Peer, head: bytes, key: bytes, value: bytes) -> None:
        total = self._total_bytes + len(value) - len(self._values.get(key, b""))
        if total > _MAX_TOTAL_BYTES:
            peer.queue(FULL, head)
            return
        self._total_bytes = total
        self._values[key] = value
        peer.queue(DONE, head)
        for each in self._waiting:
            if each.key == key:
                each.peer.queue(VALUE, each.head, value)
        self._waiting = [each for each in self._waiting if each.key != key]

    def _get(self, peer: Peer, head: bytes, key: bytes, wait_s: float) -> None:
        value = self._values.get(key)
        if value is not None:
            peer.queue(VALUE, head, value)
        elif not wait_s > 0:
            peer.queue(ABSENT, head)
        else:
            self._waiting.append(_Waiting(peer, head, key, time.monotonic() + wait_s))


def serve(listener: socket.socket, size: int, secret: bytes) -> Service:
    """Answers until it is closed."""
    return Service(
        listener, size, secret, Keys(), max_body_bytes=MAX_VALUE_BYTES, name="collectives-store"
    )
