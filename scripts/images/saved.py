"""What `docker save` writes: an archive of archives, listed in manifest.json. Layers may lie below
their own names or below blobs/, and may be links to each other."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scripts.images.engine import Client
from scripts.images.errors import ImageError

LIMIT_S = 600.0


@contextmanager
def saved(client: Client, reference: str) -> Iterator[Path]:
    """The image as a file, which is gone at the end. Raises ImageError."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        done = subprocess.run(
            client.argv("save", reference), stdout=file, stderr=subprocess.PIPE,
            env=client.environ(), check=False, timeout=LIMIT_S,
        )  # fmt: skip
        if done.returncode:
            raise ImageError(f"docker save: {done.stderr.decode(errors='replace').strip()}")
        yield Path(file.name)


def config_of(path: Path) -> dict[str, Any]:
    """The image's configuration."""
    with tarfile.open(path) as image:
        found: dict[str, Any] = json.load(_file(image, _listed(image)["Config"]))
    return found


def layers_of(path: Path) -> Iterator[tarfile.TarFile]:
    """Each layer as an archive, the lowest first; open until the next is asked for."""
    with tarfile.open(path) as image:
        for name in _listed(image)["Layers"]:
            with tarfile.open(fileobj=_file(image, name)) as layer:
                yield layer


def _listed(image: tarfile.TarFile) -> dict[str, Any]:
    found: dict[str, Any] = json.load(_file(image, "manifest.json"))[0]
    return found


def _file(image: tarfile.TarFile, name: str) -> IO[bytes]:
    found = image.extractfile(name)
    if found is None:
        raise ImageError(f"docker save: {name} is no file")
    return found
