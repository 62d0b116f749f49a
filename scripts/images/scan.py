"""Looks through every layer of an image for what must not be in any: keys, credentials, traces.

A file that a later layer removes is still in the image, so layers are read one by one, and with
them the image's history and configuration. Source: reliability.md S01, S14.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.images.engine import Client
from scripts.images.errors import ImageError

HEAD_BYTES = 1 << 20  # of a file that are searched
LIMIT_S = 600.0
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
    """What must not be there. `words`: texts that are this machine's, such as an index's name;
    the lowest layer, which is the base's, may hold them. Raises ImageError."""
    known = [word.encode() for word in words if word]
    found = [*_described(client, reference, known)]
    with tempfile.NamedTemporaryFile(suffix=".tar") as saved:
        argv = client.argv("save", reference)
        done = subprocess.run(
            argv, stdout=saved, stderr=subprocess.PIPE, env=client.environ(), check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
        if done.returncode:
            raise ImageError(f"docker save: {done.stderr.decode(errors='replace').strip()}")
        return found + list(scan_archive(Path(saved.name), known))


def scan_archive(path: Path, words: Sequence[bytes] = ()) -> Iterator[Finding]:
    """What `docker save` wrote: an archive of archives, listed in manifest.json. Layers may lie
    below their own names or below blobs/, and may be links to each other."""
    with tarfile.open(path) as image:
        listed = image.extractfile("manifest.json")
        assert listed is not None
        for number, name in enumerate(json.load(listed)[0]["Layers"]):
            layer = image.extractfile(name)
            if layer is None:
                raise ImageError(f"docker save: layer {name} is no file")
            with tarfile.open(fileobj=layer) as files:
                yield from _layer(files, f"layer {number}", words if number else ())


def _described(client: Client, reference: str, words: Iterable[bytes]) -> Iterator[Finding]:
    history = client.must("history", "--no-trunc", "--format={{.CreatedBy}}", reference)
    configuration = client.must("image", "inspect", "--format={{json .Config}}", reference)
    for where, text in (("history", history), ("configuration", configuration)):
        yield from _content(text.encode(), where, words, settings=True)


def _layer(files: tarfile.TarFile, layer: str, words: Iterable[bytes]) -> Iterator[Finding]:
    for member in files:
        path = member.name.removeprefix("./").lstrip("/")
        where = f"{layer} /{path}"
        for pattern, what in _NAMES:
            if member.size and pattern.search(path):
                yield Finding(what, where)
        content = files.extractfile(member) if member.isfile() else None
        if content is not None:
            settings = bool(_SETTINGS.search(path))
            looked_for = () if _OF_DEBIAN.search(path) else words
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


def summary(found: Iterable[Finding]) -> str:
    return json.dumps([one._asdict() for one in found], indent=1)
