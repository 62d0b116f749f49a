"""docker buildx, for the tests of docker-bake.hcl: Debian's package, unpacked below .cache/ only.

It comes from this machine's mirror and is checked by hash.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from scripts.images.base_image import find_mirror
from scripts.images.choice import pythons
from scripts.images.errors import ImageError
from scripts.images.pins import CHECKOUT, pins

PLUGIN = CHECKOUT / ".cache" / "docker-config" / "cli-plugins" / "docker-buildx"
INSIDE = Path("usr/libexec/docker/cli-plugins/docker-buildx")
FETCH_S = 60.0


def have_buildx() -> Path:
    """The plugin as a program. Raises ImageError when it is not here and cannot be fetched."""
    if PLUGIN.is_file():
        return PLUGIN
    if platform.machine() != "x86_64":
        raise ImageError(f"no pinned buildx for {platform.machine()}", "install docker-buildx")
    known = pins()
    address = (
        f"{find_mirror(pythons()[known['IMAGE_PYTHON']][0]).rstrip('/')}/{known['BUILDX_DEB']}"
    )
    try:
        with urllib.request.urlopen(address, timeout=FETCH_S) as answer:
            package = answer.read()
    except OSError as error:
        raise ImageError(f"docker-buildx could not be fetched: {error}") from error
    if hashlib.sha256(package).hexdigest() != known["BUILDX_SHA256"]:
        raise ImageError("docker-buildx is not the pinned one: its sha256 differs")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "package.deb").write_bytes(package)
        subprocess.run(
            ["dpkg-deb", "-x", f"{folder}/package.deb", f"{folder}/root"], check=True, timeout=60
        )
        PLUGIN.parent.mkdir(parents=True, exist_ok=True)
        found = Path(folder) / "root" / INSIDE
        PLUGIN.with_suffix(".part").write_bytes(found.read_bytes())
    PLUGIN.with_suffix(".part").chmod(0o755)
    PLUGIN.with_suffix(".part").rename(PLUGIN)
    return PLUGIN
