"""Frames of the control channel: length, keyed hash, JSON. No pickle, nothing but JSON lists.

Handshake (S03), F follower, L leader, n nonces:
  L -> F  challenge: n_L
  F -> L  hello: job id, host_index, digest, n_F, proof_F
  L -> F  welcome: proof_L, the job key (masked when both sides hold a job secret)
A follower that comes back proves with the job key, and each side what it has received. Its new
connection counts from the first frame on it; until then the one before does.
From then on every frame carries HMAC(session key, direction, sequence number, payload), the session
key being HMAC(job key, n_L, n_F, host_index): a frame replayed in any place or session is refused.
Frames before that are small, so that a stranger costs the leader little memory.
Limit: without a job secret the key travels in the clear, so an attacker on the path during the
join wins, as with torch's own store; SECURITY.md says so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

from muster.run.channel.messages import WireError

FRAME_LIMIT_BYTES = 64 << 10
HELLO_LIMIT_BYTES = 4 << 10  # before a peer is known; the longest hello takes 2,100
HEADER_BYTES = 4
NUMBERS_BYTES = 64  # of what `encode_numbered` puts around a message
MAC_BYTES = 32
KEY_BYTES = 32
NONCE_BYTES = 16

TO_LEADER = b"F"
TO_FOLLOWER = b"L"


def encode(message: list[object]) -> bytes:
    """The payload of a message. Raises ValueError when it does not fit a frame, numbers added."""
    return _fitting(json.dumps(message, separators=(",", ":")).encode(), NUMBERS_BYTES)


def encode_numbered(number: int, received: int, fields: bytes) -> bytes:
    """The payload `["m", number, received, fields]` of fields that `encode` made, so that a
    message for all hosts is encoded once. Raises ValueError when it does not fit a frame."""
    return _fitting(b'["m",%d,%d,%b]' % (number, received, fields))


def decode(payload: bytes) -> list[object]:
    """The message of a payload. Raises WireError unless it is a JSON list that names its kind."""
    try:
        message = json.loads(payload, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise WireError("not JSON") from error
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        raise WireError("not a list that begins with a name")
    return message


def derive(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """A key or proof for one purpose; parts are length-prefixed, so they cannot run together."""
    data = purpose.encode() + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, data, "sha256")


def equal(expected: str, given: str) -> bool:
    """Compares proofs in constant time."""
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def resume_proof(key: bytes, parts: Sequence[bytes], received: int) -> str:
    """Of a follower that comes back, having received so many messages."""
    return derive(key, "resume", *parts, str(received).encode()).hex()


def welcome_proof(key: bytes, parts: Sequence[bytes], received: int) -> str:
    """Of the leader, which has received so many messages of this follower."""
    return derive(key, "leader", *parts, str(received).encode()).hex()


def masked(key: bytes, secret: bytes, *parts: bytes) -> bytes:
    """The job key masked with the job secret; the same call removes the mask."""
    stream = derive(secret, "job-key-mask", *parts)
    return bytes(a ^ b for a, b in zip(key, stream, strict=True))


def digest_of(value: object) -> str:
    """A short hash of a JSON value, for comparing without sending it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Sealer:
    """Makes outgoing frames; `key` None during the handshake."""

    def __init__(self, direction: bytes) -> None:
        self._direction = direction
        self._sequence = 0
        self.key: bytes | None = None

    def frame(self, payload: bytes) -> bytes:
        """One frame, ready to be sent. Frames must be sent in the order they are made."""
        mac = b""
        if self.key is not None:
            mac = _mac(self.key, self._direction, self._sequence, payload)
            self._sequence += 1
        return (len(mac) + len(payload)).to_bytes(HEADER_BYTES, "big") + mac + payload


class Opener:
    """Takes bytes, gives checked payloads; never holds more than one frame and one read."""

    def __init__(self, direction: bytes) -> None:
        self._direction = direction
        self._sequence = 0
        self._data = b""
        self.key: bytes | None = None

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> bytes | None:
        """The next payload, or None until more arrives. Raises WireError for a bad frame."""
        if len(self._data) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._data[:HEADER_BYTES], "big")
        mac_bytes = 0 if self.key is None else MAC_BYTES
        limit = HELLO_LIMIT_BYTES if self.key is None else FRAME_LIMIT_BYTES
        if not mac_bytes < size <= limit:
            raise WireError(f"a frame of {size} bytes")
        end = HEADER_BYTES + size
        if len(self._data) < end:
            return None
        mac = self._data[HEADER_BYTES : HEADER_BYTES + mac_bytes]
        payload = self._data[HEADER_BYTES + mac_bytes : end]
        self._data = self._data[end:]
        if self.key is not None:
            expected = _mac(self.key, self._direction, self._sequence, payload)
            if not hmac.compare_digest(mac, expected):
                raise WireError("a frame with a wrong keyed hash")
            self._sequence += 1
        return payload


def _fitting(payload: bytes, more_bytes: int = 0) -> bytes:
    if len(payload) + more_bytes > FRAME_LIMIT_BYTES - MAC_BYTES:
        raise ValueError(f"a message of {len(payload)} bytes does not fit a frame")
    return payload


def _refused(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _mac(key: bytes, direction: bytes, sequence: int, payload: bytes) -> bytes:
    return hmac.digest(key, direction + sequence.to_bytes(8, "big") + payload, "sha256")
