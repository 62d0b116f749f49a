"""Looks through every layer of an image for what must not be in any: keys, credentials, traces.

A file that a later layer removes is still in the image, so layers are read one by one, and with
them the image's history and configuration. See promises S01 and S14.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.images.engine import Client
from scripts.images.saved import layers_of, saved

HEAD_BYTES = 1 << 20  # of a file that are searched
# a header alone is in every library that reads keys: a key has its content behind it
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=:,\-\s]{64}")
_SECRET = rb"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"
_CREDENTIAL = re.compile(
    rb"(?:AKIA|ASIA)(?![0-9A-Z]*EXAMPLE)[0-9A-Z]{16}(?![0-9A-Za-z])|"
    rb"(?i:aws_secret_access_key)[\"']?\s*[=:]\s*[\"']?" + _SECRET + rb"|"
    rb"\"SecretAccessKey\"\s*:\s*\"" + _SECRET + rb"|"
    rb"gh[pousr]_[0-9A-Za-z]{36}|"
    rb"\"auth\"\s*:\s*\"[A-Za-z0-9+/=]{12,}\""
)
# in documentation these are examples; in settings and in the history they are passwords
_IN_ADDRESS = re.compile(rb"https?://[^/\s:@\"'<>]+:[^/\s@\"'<>]+@[\w.-]+")
_SETTINGS = re.compile(r"^(etc|root|home|opt/ml|run)/")
_OF_DEBIAN = re.compile(r"^usr/lib/dpkg/")  # its tools name its own mirror
_OF_BASE = re.compile(r"^etc/apt/sources\.list")  # the mirror that the base was given
_NAMES = (
    (re.compile(r"(^|/)ssh_host_\w+_key(\.pub)?$|(^|/)id_(rsa|dsa|ecdsa|ed25519)(\.pub)?$"), "key"),
    (re.compile(r"(^|/)authorized_keys$"), "key"),
    (re.compile(r"(^|/)(pip\.conf|\.pypirc|\.netrc|\.git-credentials)$"), "settings of an index"),
    (re.compile(r"(^|/)\.docker/config\.json$|(^|/)\.aws/credentials$"), "credential"),
)


class Finding(NamedTuple):
    """`where`: a layer (by its number, the lowest is 0) and path, or history, configuration."""

    what: str
    where: str


def scan(client: Client, reference: str, words: Sequence[str] = ()) -> list[Finding]:
    """What must not be there. `words`: texts that are this machine's, such as an index's name.
    Raises ImageError."""
    known = [word.encode() for word in words if word]
    found = [*_described(client, reference, known)]
    with saved(client, reference) as path:
        return found + list(scan_archive(path, known))


def scan_archive(path: Path, words: Sequence[bytes] = ()) -> Iterator[Finding]:
    """What `docker save` wrote."""
    for number, layer in enumerate(layers_of(path)):
        yield from _layer(layer, number, words)


def _described(client: Client, reference: str, words: Iterable[bytes]) -> Iterator[Finding]:
    history = client.must("history", "--no-trunc", "--format={{.CreatedBy}}", reference)
    configuration = client.must("image", "inspect", "--format={{json .Config}}", reference)
    for where, text in (("history", history), ("configuration", configuration)):
        yield from _content(text.encode(), where, words, settings=True)


def _layer(files: tarfile.TarFile, number: int, words: Iterable[bytes]) -> Iterator[Finding]:
    for member in files:
        path = member.name.removeprefix("./").lstrip("/")
        where = f"layer {number} /{path}"
        for pattern, what in _NAMES:
            if member.size and pattern.search(path):
                yield Finding(what, where)
        content = files.extractfile(member) if member.isfile() else None
        if content is not None:
            settings = bool(_SETTINGS.search(path))
            theirs = _OF_DEBIAN.search(path) or (number == 0 and _OF_BASE.search(path))
            looked_for = () if theirs else words
            yield from _content(content.read(HEAD_BYTES), where, looked_for, settings)


def _content(data: bytes, where: str, words: Iterable[bytes], settings: bool) -> Iterator[Finding]:
    if _KEY.search(data):
        yield Finding("private key", where)
    if _CREDENTIAL.search(data):
        yield Finding("credential", where)
    if settings and _IN_ADDRESS.search(data):
        yield Finding("password in an address", where)
    for word in words:
        if word in data:
            yield Finding(f"{word.decode()!r}, which is this machine's", where)


def summary(reference: str, found: Sequence[Finding]) -> str:
    """A line for each, and one that says how it ended."""
    looked = "in every layer, the history and the configuration"
    end = f"{len(found)} found" if found else "no key, credential or trace of this machine"
    return "\n".join(
        [*(f"{one.where}: {one.what}" for one in found), f"{reference}: {end} {looked}"]
    )
