"""The first bytes of a connection: both sides prove the shared key, then frames begin.

  S -> W  magic, version, nonce_S
  W -> S  magic, version, rank, index of the server, nonce_W, proof_W
  S -> W  proof_S
A proof is HMAC-SHA256(key, role, nonce_S, nonce_W, rank, index): it cannot be replayed, nor be
reflected. 77 bytes at most are read of a peer that is not known. Limits: what follows is neither
encrypted nor signed, so anyone on the job's network who changes packets changes gradients; and
without a key (only on loopback) every process of the machine can connect.
"""

from __future__ import annotations

import hmac
import struct
from typing import NamedTuple

from muster_parameter_server.errors import ProtocolError
from muster_parameter_server.wire.frames import MAGIC, VERSION

NONCE_BYTES = 32
PROOF_BYTES = 32
_HELLO = struct.Struct(f"!4sB{NONCE_BYTES}s")
_ANSWER = struct.Struct(f"!4sBII{NONCE_BYTES}s{PROOF_BYTES}s")
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = _ANSWER.size


class Answer(NamedTuple):
    """What a worker says of itself; nothing of it counts before its proof does."""

    rank: int
    number: int
    nonce: bytes
    proof: bytes


def hello(nonce: bytes) -> bytes:
    return _HELLO.pack(MAGIC, VERSION, nonce)


def read_hello(data: bytes) -> bytes:
    """The server's nonce. Raises ProtocolError."""
    magic, version, nonce = _HELLO.unpack(data)
    _require(magic, version)
    return bytes(nonce)


def answer(key: bytes, server_nonce: bytes, nonce: bytes, rank: int, index: int) -> bytes:
    proof = proof_of(key, b"worker", server_nonce, nonce, rank, index)
    return _ANSWER.pack(MAGIC, VERSION, rank, index, nonce, proof)


def read_answer(data: bytes) -> Answer:
    """Raises ProtocolError."""
    magic, version, *rest = _ANSWER.unpack(data)
    _require(magic, version)
    return Answer(*rest)


def proof_of(
    key: bytes, role: bytes, server_nonce: bytes, nonce: bytes, rank: int, index: int
) -> bytes:
    """What only a holder of the key can say, in this connection alone."""
    numbers = struct.pack("!II", rank, index)  # all parts but the role have a fixed length
    text = b"muster-parameter-server 1 " + role + b":" + server_nonce + nonce + numbers
    return hmac.digest(key, text, "sha256")


def _require(magic: bytes, version: int) -> None:
    if magic != MAGIC:
        raise ProtocolError(f"no parameter server or worker: it says {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(
            f"it speaks version {version} and not {VERSION}",
            "install the same muster-parallel everywhere",
        )
