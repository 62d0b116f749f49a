"""Whether two images are the same but for when they were built: equal layers, and configurations
that are equal after `normal`."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scripts.images.engine import Client
from scripts.images.saved import config_of, layers_of, saved


class Content(NamedTuple):
    """An image as it is saved. `layers`: of each, what is said of every path in it."""

    config: Mapping[str, Any]
    layers: tuple[Mapping[str, str], ...]


def normal(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without `created`, of the image and of each step of its history. The
    digests of its layers are in it (`rootfs.diff_ids`)."""
    history = [
        {name: value for name, value in step.items() if name != "created"}
        for step in config.get("history", ())
    ]
    kept = {name: value for name, value in config.items() if name != "created"}
    return {**kept, "history": history}


def likeness(config: Mapping[str, Any]) -> str:
    """A digest that is equal for images that are the same but for when they were built."""
    text = json.dumps(normal(config), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def content_of(client: Client, reference: str) -> Content:
    """Raises ImageError."""
    with saved(client, reference) as path:
        return Content(config_of(path), tuple(map(entries, layers_of(path))))


def entries(layer: tarfile.TarFile) -> dict[str, str]:
    """What is said of each path of a layer: equal when all its bytes in the archive are."""
    return {member.name: _said(layer, member) for member in layer}


def _said(files: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    data = files.extractfile(member) if member.isreg() else None
    digest = hashlib.sha256(data.read()).hexdigest()[:12] if data else member.linkname
    owner, kind = f"{member.uid}:{member.gid}", member.type.decode()
    what = f"type {kind} mode {member.mode:o} of {owner} at {member.mtime:.9f}"
    further = [f"{member.uname}:{member.gname}", *map(str, sorted(member.pax_headers.items()))]
    return (
        f"{what}, {member.size} bytes {digest} {' '.join(further)} header {_header(files, member)}"
    )


def _header(files: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """Of all bytes before its data: what `tarfile` does not tell is in the layer's digest too."""
    archive, there = files.fileobj, member.offset
    assert archive is not None
    here = archive.tell()
    archive.seek(there)
    found = archive.read(member.offset_data - there)
    archive.seek(here)
    return hashlib.sha256(found).hexdigest()[:12]


def differences(one: Content, other: Content) -> Iterator[str]:
    """A line for each path whose entry differs, and for each field of the normal configuration."""
    for number, (left, right) in enumerate(zip(one.layers, other.layers, strict=False)):
        if list(left) != list(right):
            yield f"layer {number}: the order of its entries"
        for path in sorted({*left, *right}):
            if left.get(path) != right.get(path):
                yield f"layer {number} /{path}: {left.get(path)}; {right.get(path)}"
    mine, theirs = normal(one.config), normal(other.config)
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            yield f"configuration {name}: {mine.get(name)}; {theirs.get(name)}"
