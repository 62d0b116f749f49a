"""Authenticated frames over one connection: what the ranks' store and the parameter server speak.

A connection begins with a handshake, in which both sides prove that they have the same key:

  server -> client  magic, version, nonce_S
  client -> server  magic, version, rank, number of the server, nonce_C, proof_C
  server -> client  a frame: WELCOME with proof_S, or REFUSED with the reason

The server speaks first, so programs of others get no byte from a client, and it reads 77 bytes at
most of a peer that is not known. A proof is HMAC-SHA256(key, magic, role, nonce_S, nonce_C, rank,
number): it can be neither replayed nor reflected. Then frames: a header, a short head, a body.

| Bytes | Field | Rule |
| 4 | magic | the protocol's |
| 1 | version | the protocol's |
| 1 | kind | from 16 on the protocol's own |
| 1 | tag | means what the kind says |
| 2 | head_bytes | at most `max_head_bytes` of the protocol |
| 8 | body_bytes | at most what the reader allows |
| 8 | sequence | one more than that of the frame before, on this connection and in this direction |

All of it big-endian. A header is checked whole before anything behind it is read. Limits: what
follows the handshake is neither encrypted nor signed.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from typing import NamedTuple

NONCE_BYTES = 32
PROOF_BYTES = 32
WELCOME, REFUSED = 1, 2
FIRST_KIND = 16  # of a protocol's own
_MOST_REASON_BYTES = 1024
_HEADER = struct.Struct("!4sBBBHQQ")
_HELLO = struct.Struct(f"!4sB{NONCE_BYTES}s")
_ANSWER = struct.Struct(f"!4sBII{NONCE_BYTES}s{PROOF_BYTES}s")
HEADER_BYTES = _HEADER.size
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = _ANSWER.size


class FrameError(Exception):
    """What came is not what this protocol allows there; `fix` where there is one."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(f"{message}: {fix}" if fix else message)
        self.message = message
        self.fix = fix


class RefusedError(FrameError):
    """The server has refused this client: it said why, or nothing more."""


class Header(NamedTuple):
    """The header of a frame, checked."""

    kind: int
    tag: int
    head_bytes: int
    body_bytes: int


class Frame(NamedTuple):
    """A whole frame."""

    kind: int
    head: bytes
    body: bytearray


class Answer(NamedTuple):
    """What a client says of itself; nothing of it counts before its proof does."""

    rank: int
    number: int
    nonce: bytes
    proof: bytes


class Protocol(NamedTuple):
    """What two programs speak over a connection: its name in four bytes, its version, and the
    longest head of its frames."""

    magic: bytes
    version: int
    max_head_bytes: int = 0

    def header(
        self, sequence: int, kind: int, body_bytes: int, head_bytes: int = 0, tag: int = 0
    ) -> bytes:
        return _HEADER.pack(self.magic, self.version, kind, tag, head_bytes, body_bytes, sequence)

    def read_header(
        self, data: bytes | bytearray | memoryview, sequence: int, max_body_bytes: int
    ) -> Header:
        """Raises FrameError unless every field is right."""
        magic, version, kind, tag, head_bytes, body_bytes, number = _HEADER.unpack(data)
        self._require(magic, version)
        if number != sequence:
            raise FrameError(f"frame {number} came where frame {sequence} was due")
        if head_bytes > self.max_head_bytes or body_bytes > max_body_bytes:
            raise FrameError(f"a frame claims {head_bytes} + {body_bytes} bytes")
        return Header(kind, tag, head_bytes, body_bytes)

    def hello(self, nonce: bytes) -> bytes:
        return _HELLO.pack(self.magic, self.version, nonce)

    def read_hello(self, data: bytes) -> bytes:
        """The server's nonce. Raises FrameError."""
        magic, version, nonce = _HELLO.unpack(data)
        self._require(magic, version)
        return bytes(nonce)

    def answer(
        self, key: bytes, server_nonce: bytes, nonce: bytes, rank: int, number: int
    ) -> bytes:
        proof = self.proof(key, b"client", server_nonce, nonce, rank, number)
        return _ANSWER.pack(self.magic, self.version, rank, number, nonce, proof)

    def read_answer(self, key: bytes, server_nonce: bytes, data: bytes) -> Answer:
        """Raises FrameError, also where the client does not have the key."""
        magic, version, *rest = _ANSWER.unpack(data)
        self._require(magic, version)
        told = Answer(*rest)
        due = self.proof(key, b"client", server_nonce, told.nonce, told.rank, told.number)
        if not hmac.compare_digest(due, told.proof):
            raise FrameError("the proof is wrong: another job, or another key")
        return told

    def welcome(self, key: bytes, server_nonce: bytes, told: Answer) -> bytes:
        """What a client that may stay is sent."""
        return self._reply(
            WELCOME, self.proof(key, b"server", server_nonce, told.nonce, told.rank, told.number)
        )

    def refusal(self, reason: str) -> bytes:
        return self._reply(REFUSED, reason.encode()[:_MOST_REASON_BYTES])

    def prove(
        self, sock: socket.socket, key: bytes, rank: int, number: int, hello_by: float, by: float
    ) -> None:
        """The client's part of the handshake, over a blocking socket: until `hello_by` (monotonic)
        for the server's first word, as others may listen there, and `by` for its last one.

        Raises OSError where it does not say that word, FrameError where it is not ours,
        RefusedError where it does not answer our proof, or says why it does not take us.
        """
        theirs = self.read_hello(read_exactly(sock, HELLO_BYTES, hello_by))
        nonce = os.urandom(NONCE_BYTES)
        try:
            sock.sendall(self.answer(key, theirs, nonce, rank, number))
            head = self.read_header(read_exactly(sock, HEADER_BYTES, by), 0, _MOST_REASON_BYTES)
            body = read_exactly(sock, head.body_bytes, by)
        except OSError as error:
            raise RefusedError(error.strerror or str(error)) from error
        if head.kind == REFUSED:
            raise RefusedError(body.decode(errors="replace"))
        due = self.proof(key, b"server", theirs, nonce, rank, number)
        if head.kind != WELCOME or not hmac.compare_digest(due, body):
            raise FrameError("it could not prove the key", "another program may listen there")

    def proof(
        self, key: bytes, role: bytes, server_nonce: bytes, nonce: bytes, rank: int, number: int
    ) -> bytes:
        """What only a holder of the key can say, in this connection alone."""
        numbers = struct.pack("!II", rank, number)  # all parts but the role have a fixed length
        text = b"muster wire " + self.magic + role + b":" + server_nonce + nonce + numbers
        return hmac.digest(key, text, "sha256")

    def _reply(self, kind: int, body: bytes) -> bytes:
        return self.header(0, kind, len(body)) + body

    def _require(self, magic: bytes, version: int) -> None:
        if magic != self.magic:
            raise FrameError(f"no frame: it begins with {bytes(magic)!r}, not {self.magic!r}")
        if version != self.version:
            raise FrameError(
                f"it speaks version {version} and not {self.version}",
                "install the same muster-parallel everywhere",
            )


class Parser:
    """Turns a stream of bytes into frames. Takes bytes as they come: `room()` is where the next
    ones go, `took(n)` how many came. `first`: so many bytes come before frames do, and are told as
    a frame of kind 0."""

    def __init__(self, protocol: Protocol, max_body_bytes: int, first: int = 0) -> None:
        self.max_body_bytes = max_body_bytes
        self._protocol = protocol
        self._sequence = 0 if first else 1  # of the frame that is due
        self._header: Header | None = Header(0, 0, 0, first) if first else None
        self._part = bytearray(first or HEADER_BYTES)
        self._filled = 0

    def room(self) -> memoryview:
        return memoryview(self._part)[self._filled :]

    def took(self, count: int) -> Frame | None:
        """The frame that is whole now, if any. Raises FrameError."""
        self._filled += count
        if self._filled == len(self._part) and self._header is None:
            self._header = self._protocol.read_header(
                self._part, self._sequence, self.max_body_bytes
            )
            self._begin(self._header.head_bytes + self._header.body_bytes)
        if self._filled < len(self._part) or self._header is None:
            return None
        kind, _, head_bytes, _ = self._header
        frame = Frame(kind, bytes(self._part[:head_bytes]), self._part[head_bytes:])
        self._sequence += 1
        self._header = None
        self._begin(HEADER_BYTES)
        return frame

    def _begin(self, size: int) -> None:
        self._part, self._filled = bytearray(size), 0


def read_exactly(sock: socket.socket, count: int, by: float) -> bytes:
    """Raises OSError when the bytes have not come in time, however many of them did."""
    data = bytearray()
    while len(data) < count:
        sock.settimeout(max(0.001, by - time.monotonic()))
        got = sock.recv(count - len(data))
        if not got:
            raise ConnectionError("it closed the connection during the handshake")
        data += got
    return bytes(data)
