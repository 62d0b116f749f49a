"""What a registry holds, read by skopeo, which knows the tokens and certificates of all of them."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import os
import re
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scripts.images.errors import ImageError
from scripts.images.push_problem import explained

__all__ = [
    "HUB",
    "Layer",
    "Login",
    "Manifest",
    "Registry",
    "config_of",
    "is_loopback",
    "manifest_of",
    "private_folder",
    "reached",
]

ANSWER_S = 60.0
HUB = "docker.io"
MEMORY = "/dev/shm"
_ABSENT = re.compile(
    r"manifest unknown|name unknown|name not known|statuscode: 404"
    r"|unknown: (artifact|repository) \S+ not found",  # Harbor
    re.IGNORECASE,
)
_TRANSPORT = "docker://"


class Login(NamedTuple):
    """A user of a registry. Prints without the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"


class Registry(NamedTuple):
    """A registry at HOST[:PORT]. `options`: skopeo's, about who asks and how."""

    host: str
    options: tuple[str, ...]


class Layer(NamedTuple):
    digest: str
    compressed_bytes: int


class Manifest(NamedTuple):
    """What a tag or digest stands for; `digest` is computed here from what the registry sent."""

    digest: str
    body: Mapping[str, Any]

    @property
    def config(self) -> str:
        """The digest of the image's configuration, "" for an index."""
        return str(self.body.get("config", {}).get("digest", ""))

    @property
    def layers(self) -> tuple[Layer, ...]:
        found = self.body.get("layers", ())
        return tuple(Layer(str(layer["digest"]), int(layer["size"])) for layer in found)

    @property
    def parts(self) -> tuple[str, ...]:
        """The digests of the images of an index."""
        return tuple(str(part["digest"]) for part in self.body.get("manifests", ()))


def is_loopback(host: str) -> bool:
    """Whether HOST[:PORT] is this machine, which engines reach without TLS."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder of mode 700 for a login, in memory where the machine has such a place."""
    place = MEMORY if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="muster-push-", dir=place) as folder:
        yield Path(folder)


@contextmanager
def reached(host: str, login: Login | None, insecure: bool) -> Iterator[Registry]:
    """The registry, to be read as `login` (None: as nobody) while the block runs.

    `insecure`: as for the engine, TLS without a check of the certificate, else plain HTTP.
    """
    with private_folder() as folder:
        auths = {}
        if login is not None:
            secret = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
            auths = {host: {"auth": secret}}
        file = folder / "auth.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({"auths": auths}))
        yield Registry(host, (f"--authfile={file}", f"--tls-verify={str(not insecure).lower()}"))


def manifest_of(registry: Registry, repository: str, reference: str) -> Manifest | None:
    """What the registry has under a tag or digest; None when it has nothing.

    Raises ImageError: no access, no answer, or an answer that contradicts itself.
    """
    data = _inspect(registry, repository, reference, "--raw")
    if data is None:
        return None
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    if reference.startswith("sha256:") and reference != digest:
        raise ImageError(
            f"{registry.host}/{repository}@{reference} is not what it says: it is {digest}",
            "do not use it, and push again under another tag",
        )
    return Manifest(digest, _parsed(registry, repository, data))


def config_of(registry: Registry, repository: str, digest: str) -> Mapping[str, Any]:
    """The configuration of an image (of an index: of its image for this machine). Raises
    ImageError."""
    data = _inspect(registry, repository, digest, "--config", "--raw")
    if data is None:
        raise ImageError(f"{registry.host}/{repository} has no {digest}", "push again")
    return _parsed(registry, repository, data)


def _parsed(registry: Registry, repository: str, data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ImageError(
            f"{registry.host}/{repository}: the answer is no manifest ({error})", "check --registry"
        ) from None
    return dict(found)


def _inspect(registry: Registry, repository: str, reference: str, *words: str) -> bytes | None:
    mark = "@" if reference.startswith("sha256:") else ":"
    name = f"{registry.host}/{repository}{mark}{reference}"
    limit = f"--command-timeout={ANSWER_S:g}s"
    argv = ["skopeo", limit, "inspect", *words, *registry.options, _TRANSPORT + name]
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=2 * ANSWER_S)
    except FileNotFoundError:
        raise ImageError(
            "a push is verified with skopeo, which is not on PATH", "apt-get install skopeo"
        ) from None
    except subprocess.TimeoutExpired:
        raise ImageError(f"asking {name}: no answer", "check the network and try again") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace")
    if _ABSENT.search(said):
        return None
    raise explained(f"asking {name}", said)
