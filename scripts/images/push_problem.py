"""What can go wrong on the way to a registry, in one sentence each, with the cure."""

from __future__ import annotations

import re
from typing import NamedTuple

from scripts.images.errors import ImageError

__all__ = ["INSECURE", "explained"]

INSECURE = (
    "give it a certificate, or name it in the engine's insecure-registries "
    "(docs/how-to/images/ecr.md)"
)


class _Known(NamedTuple):
    """What a client, an engine or a registry says, what it means, and the cure."""

    said: re.Pattern[str]
    meaning: str
    cure: str


def _known(said: str, meaning: str, cure: str) -> _Known:
    return _Known(re.compile(said, re.IGNORECASE), meaning, cure)


# the first that fits counts: what is special stands before what is general
_KNOWN = (
    _known(
        "immutable|tag invalid",
        "the registry keeps another image under this tag",
        "tags are never moved: commit the change and build again, or choose another one with --tag",
    ),
    _known(
        "HTTP response to HTTPS client",
        "the registry speaks plain HTTP and the engine asks for TLS",
        INSECURE,
    ),
    _known(
        "x509|certificate",
        "the registry's certificate is not one that the engine trusts",
        "give the engine the authority that signed it: /etc/docker/certs.d/REGISTRY/ca.crt",
    ),
    _known(
        "token has expired",
        "the leave to push ended before the push did",
        "push again: what arrived stays there",
    ),
    _known(
        "no basic auth|incorrect username or password|unauthorized|authentication required",
        "the registry does not accept the user and password",
        "check REGISTRY_USER and REGISTRY_PASSWORD, or `docker login` to it yourself; a token of "
        "ECR counts for 12 hours",
    ),
    _known(
        "repository .*(not exist|not found)|name unknown|NAME_UNKNOWN",
        "the registry has no such repository",
        "make it there first; on ECR --create makes it",
    ),
    _known(
        "denied|forbidden",
        "the registry does not let this user push there",
        "ask for the right to push (on ECR the actions that docs/how-to/images/ecr.md lists), or "
        "check --registry and --repository",
    ),
    _known(
        "connection refused|no such host|i/o timeout|deadline exceeded|unreachable|Client.Timeout"
        "|connection reset|TLS handshake|broken pipe|EOF",
        "the registry cannot be reached from the engine",
        "check --registry, the network and the engine's proxy, and try again",
    ),
    _known(
        "no space left",
        "a disk is full, the engine's or the registry's",
        "make room and try again",
    ),
    _known(
        "Cannot connect to the Docker daemon|daemon running",
        "the engine does not answer",
        "start it, or set DOCKER_HOST to one that runs",
    ),
)


def explained(doing: str, text: str) -> ImageError:
    """What a client said when it failed, with its meaning and the cure. `doing`: what it did."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "it failed without a word"
    for known in _KNOWN:
        if known.said.search(text):
            return ImageError(f"{doing}: {known.meaning} ({last})", known.cure)
    return ImageError(f"{doing}: {last}")
