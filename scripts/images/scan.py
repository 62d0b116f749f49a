"""Looks through every layer of an image for what must not be in any: keys, credentials, traces.

A file that a later layer removes is still in the image, so layers are read one by one, and with
them the image's history and configuration. Source: reliability.md S01, S14.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from scripts.images.engine import Client
from scripts.images.errors import ImageError

HEAD_BYTES = 64 << 10  # of a file that are searched; keys and settings are short
LIMIT_S = 600.0
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----|PuTTY-User-Key-File")
_CREDENTIAL = re.compile(
    rb"AKIA(?![0-9A-Z]*EXAMPLE)[0-9A-Z]{16}|aws_secret_access_key\s*=\s*[A-Za-z0-9/+]{40}|gh[pousr]_[0-9A-Za-z]{36}|"
    rb"\"auth\"\s*:\s*\"[A-Za-z0-9+/=]{12,}\""
)
_NAMES = (
    (re.compile(r"(^|/)ssh_host_\w+_key(\.pub)?$|(^|/)id_(rsa|dsa|ecdsa|ed25519)(\.pub)?$"), "key"),
    (re.compile(r"(^|/)authorized_keys$"), "key"),
    (re.compile(r"(^|/)(pip\.conf|\.pypirc|\.netrc)$"), "configuration of a package index"),
    (re.compile(r"(^|/)\.docker/config\.json$|(^|/)\.aws/credentials$"), "credential"),
)
# packages carry keys for their own tests and examples, which open nothing
_HARMLESS = re.compile(r"/site-packages/(moto|botocore|paramiko|cryptography)/|/usr/share/doc/")


class Finding(NamedTuple):
    """`where`: a layer and path, or `history`, `configuration`."""

    what: str
    where: str


def scan(client: Client, reference: str, words: Sequence[str] = ()) -> list[Finding]:
    """What must not be there. `words`: texts that are this machine's, such as a mirror's name."""
    known = [word.encode() for word in words if word]
    found = [*_described(client, reference, known)]
    argv = client.argv("save", reference)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=client.environ()) as process:
        assert process.stdout is not None
        try:
            found += _archive(process.stdout, known)
        finally:
            process.stdout.close()
            process.wait(LIMIT_S)
    if process.returncode:
        raise ImageError(f"docker save {reference} ended with {process.returncode}")
    return found


def _described(client: Client, reference: str, words: Iterable[bytes]) -> Iterator[Finding]:
    history = client.must("history", "--no-trunc", "--format={{.CreatedBy}}", reference)
    configuration = client.must("image", "inspect", "--format={{json .Config}}", reference)
    for where, text in (("history", history), ("configuration", configuration)):
        yield from _content(text.encode(), where, words)


def _archive(stream: IO[bytes], words: Sequence[bytes]) -> Iterator[Finding]:
    """What `docker save` writes: an archive of archives, one a layer."""
    with tarfile.open(fileobj=stream, mode="r|") as image:
        for member in image:
            layer = image.extractfile(member)
            if layer is None or not _is_layer(member.name):
                continue
            with tarfile.open(fileobj=layer, mode="r|*") as files:
                yield from _layer(files, member.name[:12], words)


def _is_layer(name: str) -> bool:
    return name.endswith("/layer.tar") or name.startswith("blobs/sha256/")


def _layer(files: tarfile.TarFile, layer: str, words: Sequence[bytes]) -> Iterator[Finding]:
    for member in files:
        where = f"{layer} /{member.name.lstrip('./')}"
        if _HARMLESS.search(where):
            continue
        for pattern, what in _NAMES:
            if member.size and pattern.search(member.name):
                yield Finding(what, where)
        content = files.extractfile(member) if member.isfile() else None
        if content is not None:
            yield from _content(content.read(HEAD_BYTES), where, words)


def _content(data: bytes, where: str, words: Iterable[bytes]) -> Iterator[Finding]:
    if _KEY.search(data) and not _is_program(data):
        yield Finding("private key", where)
    if _CREDENTIAL.search(data):
        yield Finding("credential", where)
    for word in words:
        if word in data:
            yield Finding(f"{word.decode()!r}, which is this machine's", where)


def _is_program(data: bytes) -> bool:
    """Libraries and modules that read keys name the header that they look for."""
    return data.startswith((b"\x7fELF", b"#!")) or b"\0" in data[:4096] or b"import " in data


def summary(found: Iterable[Finding]) -> str:
    return json.dumps([one._asdict() for one in found], indent=1)
