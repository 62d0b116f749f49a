"""Frames of our own TCP service, the store of the ranks.

A frame is a header (magic, kind, length of head, length of body), a short head and a body. A reader
has bounds: what is longer is refused before a byte of it is kept.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

MAGIC = b"Mc"
VERSION = 2
HEADER = struct.Struct("!2sBxHQ")
MAX_HEAD_BYTES = 1024
NONCE_BYTES = 32
_PROOF = struct.Struct(f"!I{NONCE_BYTES}s32s")

# the kinds that open a connection; a service's own begin at 16
HELLO, ANSWER, WELCOME, REFUSED = 1, 2, 3, 4
FIRST_KIND = 16


class FrameError(Exception):
    """What came is no frame of ours, or longer than it may be."""


class Frame(NamedTuple):
    """One message of the bootstrap."""

    kind: int
    head: bytes
    body: bytearray


def header(kind: int, head: bytes, body_bytes: int) -> bytes:
    return HEADER.pack(MAGIC, kind, len(head), body_bytes) + head


class Parser:
    """Turns a stream of bytes into frames. Takes bytes as they come: `room()` is where the next
    ones go, `took(n)` how many came."""

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._begin()

    def _begin(self) -> None:
        self._part = bytearray(HEADER.size)
        self._filled = 0
        self._stage = 0
        self._kind = 0
        self._head = b""
        self._body_bytes = 0

    def room(self) -> memoryview:
        return memoryview(self._part)[self._filled :]

    def took(self, count: int) -> Frame | None:
        """The frame that is whole now, if any. Raises FrameError."""
        self._filled += count
        while self._filled == len(self._part):
            frame = self._next()
            if frame is not None:
                return frame
        return None

    def _next(self) -> Frame | None:
        part, self._filled = self._part, 0
        if self._stage == 0:
            magic, self._kind, head_bytes, self._body_bytes = HEADER.unpack(part)
            if magic != MAGIC:
                raise FrameError("it does not speak our protocol")
            if head_bytes > MAX_HEAD_BYTES or self._body_bytes > self.max_body_bytes:
                raise FrameError(f"a frame of {head_bytes} + {self._body_bytes} bytes is too long")
            self._part, self._stage = bytearray(head_bytes), 1
            return None
        if self._stage == 1:
            self._head = bytes(part)
            self._part, self._stage = bytearray(self._body_bytes), 2
            return None
        frame = Frame(self._kind, self._head, part)
        self._begin()
        return frame


# --- who may join


def hello(nonce: bytes) -> bytes:
    return bytes([VERSION]) + nonce


def read_hello(body: bytes) -> bytes:
    """The service's nonce. Raises FrameError."""
    if len(body) != 1 + NONCE_BYTES or body[0] != VERSION:
        raise FrameError("it speaks another version: install the same muster-parallel everywhere")
    return bytes(body[1:])


def answer(secret: bytes, server_nonce: bytes, nonce: bytes, rank: int) -> bytes:
    return _PROOF.pack(rank, nonce, proof(secret, b"rank", server_nonce, nonce, rank))


def read_answer(secret: bytes, server_nonce: bytes, body: bytes) -> tuple[int, bytes]:
    """The rank and its nonce. Raises FrameError if the proof is wrong."""
    if len(body) != _PROOF.size:
        raise FrameError("no answer")
    rank, nonce, given = _PROOF.unpack(body)
    if not hmac.compare_digest(given, proof(secret, b"rank", server_nonce, nonce, rank)):
        raise FrameError("the proof is wrong: another job, or another COLLECTIVES_KEY")
    return int(rank), bytes(nonce)


def proof(secret: bytes, role: bytes, server_nonce: bytes, nonce: bytes, rank: int) -> bytes:
    """What only a holder of the secret can say, in this connection alone."""
    text = b"muster-collectives 1 " + role + b":" + server_nonce + nonce + struct.pack("!I", rank)
    return hmac.digest(secret or b"no key", text, "sha256")
