"""Ed25519 keys that every host of a job derives alike, so that none has to be exchanged.

HKDF-SHA256 (RFC 5869): a job key is extracted from the identity, keyed with the secret; from it a
seed is expanded for each purpose. Host keys are derived too, by name, because every host must know
those of all others before it first meets them.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["USER", "Key", "for_host", "job_key", "key"]

USER = b"user"
_NO_SECRET = b"muster-ssh 1: no secret"
_LABEL = b"muster-ssh 1: "


class Key(NamedTuple):
    """A pair: `private` as OpenSSH's key file, `public` as `TYPE BASE64`."""

    private: str
    public: str


def job_key(identity: bytes, secret: bytes) -> bytes:
    """32 bytes that only who knows the identity, and the secret if there is one, can compute."""
    return hmac.digest(secret or _NO_SECRET, identity, "sha256")


def for_host(name: str) -> bytes:
    """The purpose of a host's own key."""
    return b"host " + name.encode()


def key(job: bytes, purpose: bytes) -> Key:
    """The job's key for `USER` or `for_host(name)`."""
    seed = hmac.digest(job, _LABEL + purpose + b"\x01", "sha256")
    pair = Ed25519PrivateKey.from_private_bytes(seed)
    private = pair.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = pair.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return Key(private.decode(), public.decode())
