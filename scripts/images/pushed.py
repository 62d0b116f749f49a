"""The image on both sides: what the engine has, what the registry has, and the file about it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.images.engine import Client
from scripts.images.errors import ImageError
from scripts.images.push_problem import explained
from scripts.images.registry import (
    HUB,
    Layer,
    Manifest,
    Registry,
    config_of,
    is_loopback,
    manifest_of,
)
from scripts.images.targets import TARGETS

__all__ = [
    "SCHEMA",
    "Image",
    "Pushed",
    "contents_of",
    "image_of",
    "is_insecure",
    "verified",
    "write",
]

SCHEMA = 1  # of the image manifest file
_LABEL = "org.opencontainers.image."
_SETTINGS = ("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Labels", "ExposedPorts", "Volumes",
             "StopSignal", "Healthcheck", "Shell")  # fmt: skip


class Contents(NamedTuple):
    """What a container of an image gets: `layers` by the digest of what is in them unpacked, and
    the `settings` (environment, command, user, labels). Two builds of one commit from the same
    packages have equal ones, though their ids differ by the time of the build."""

    layers: tuple[str, ...]
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, layers: Sequence[str], settings: Mapping[str, Any]) -> Contents:
        """`settings` as engines write them: what they leave empty, or about the build, goes."""
        kept = {name: value for name, value in settings.items() if value and name in _SETTINGS}
        return cls(tuple(layers), kept)


class Image(NamedTuple):
    """An image of the engine. `size_bytes`: unpacked. `known_as`: its names by digest."""

    target: str
    image_id: str
    size_bytes: int
    created: str
    tags: tuple[str, ...]
    known_as: tuple[str, ...]
    labels: Mapping[str, str]
    contents: Contents

    def digests(self, place: str) -> tuple[str, ...]:
        """The digests that the engine knows it by in that repository."""
        names = (name.partition("@") for name in self.known_as)
        short = place.removeprefix(f"{HUB}/").removeprefix("library/")
        return tuple(digest for where, _, digest in names if where in (place, short))


class Pushed(NamedTuple):
    """An image in a registry; the fields of the image manifest file, in its order."""

    schema: int
    target: str
    reference: str
    registry: str
    repository: str
    tag: str
    digest: str
    image_id: str
    size_bytes: int
    compressed_bytes: int
    layers: tuple[Layer, ...]
    git_sha: str | None
    version: str | None
    created: str
    pushed: str


def image_of(client: Client, target: str, reference: str) -> Image:
    """The image of that name or id. Raises ImageError when the engine has none."""
    done = client.run("image", "inspect", reference)
    if done.returncode and "no such image" in done.stderr.lower():
        cure = f"make image TARGET={target}" if target in TARGETS else "build or pull it, then push"
        raise ImageError(f"the engine has no image {reference}", cure)
    if done.returncode:
        raise explained(f"looking at {reference}", done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)[0]
    return Image(
        target,
        found["Id"],
        int(found["Size"]),
        found["Created"],
        tuple(found.get("RepoTags") or ()),
        tuple(found.get("RepoDigests") or ()),
        (found.get("Config") or {}).get("Labels") or {},
        Contents.read(found["RootFS"].get("Layers") or (), found.get("Config") or {}),
    )


def is_insecure(client: Client, host: str) -> bool:
    """Whether the engine talks to that registry without TLS, or without checking it."""
    if is_loopback(host):
        return True
    done = client.run("info", "--format", "{{json .RegistryConfig}}")
    try:
        known: dict[str, Any] = json.loads(done.stdout)
        entry = (known.get("IndexConfigs") or {}).get(host)
        if entry is not None:
            return not entry.get("Secure", True)
        address = ipaddress.ip_address(urllib.parse.urlsplit(f"//{host}").hostname or "")
        nets = known.get("InsecureRegistryCIDRs") or ()
        return any(address in ipaddress.ip_network(net) for net in nets)
    except (ValueError, AttributeError):
        return False  # a name, or nothing was said: as for any registry


def verified(
    registry: Registry, image: Image, there: Manifest, *, host: str, repository: str, tag: str
) -> Pushed:
    """What is there, read back by its digest. Raises ImageError when it is not this image."""
    again = manifest_of(registry, repository, there.digest)
    if again is None:
        raise ImageError(
            f"{host}/{repository} has no {there.digest} although the tag {tag} stands for it",
            "push again; if it stays so, ask the registry's owner",
        )
    one = _single(registry, repository, again)
    same = image.image_id in (one.config, one.digest, again.digest)
    if not same and image.contents != contents_of(registry, repository, one):
        raise ImageError(
            f"{host}/{repository}@{again.digest} is of another image ({one.config}) than "
            f"{image.image_id}",
            "do not use it; see who else pushes there, and push again under another tag",
        )
    ours = image.target in TARGETS  # labels of others are inherited from ours
    return Pushed(
        schema=SCHEMA,
        target=image.target,
        reference=f"{host}/{repository}@{again.digest}",
        registry=host,
        repository=repository,
        tag=tag,
        digest=again.digest,
        image_id=one.config or image.image_id,
        size_bytes=image.size_bytes,
        compressed_bytes=sum(layer.compressed_bytes for layer in one.layers),
        layers=one.layers,
        git_sha=image.labels.get(f"{_LABEL}revision") or None if ours else None,
        version=image.labels.get(f"{_LABEL}version") or None if ours else None,
        created=image.created,
        pushed=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def contents_of(registry: Registry, repository: str, found: Manifest) -> Contents:
    """What is in an image of the registry. Raises ImageError."""
    config = config_of(registry, repository, found.digest)
    layers = (config.get("rootfs") or {}).get("diff_ids") or ()
    return Contents.read(layers, config.get("config") or {})


def _single(registry: Registry, repository: str, found: Manifest) -> Manifest:
    """Of an index the first image that is one; other entries are notes about how it was built."""
    for part in found.body.get("manifests", ()):
        if part.get("platform", {}).get("architecture", "unknown") != "unknown":
            return manifest_of(registry, repository, str(part["digest"])) or found
    return found


def write(pushed: Pushed, path: Path) -> None:
    """The image manifest file, whole or not at all."""
    told = {**pushed._asdict(), "layers": [layer._asdict() for layer in pushed.layers]}
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(told, indent=2) + "\n")
        beside.replace(path)
    except OSError as error:
        cure = "give another place with --manifest and push again: the image is already there"
        raise ImageError(f"writing {path}: {error.strerror}", cure) from error
