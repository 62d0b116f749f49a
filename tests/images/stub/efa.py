"""A stub of AWS's EFA installer: notes its flags and lays down a tree as the real one leaves it."""

from __future__ import annotations

import hashlib
import platform
import tarfile
from pathlib import Path
from typing import NamedTuple

from tests.images.stub.libraries import library, linked

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
MPIRUN = '#!/bin/sh\necho "mpirun (Open MPI) 5.0.9stub"\n'


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
    fabric = linked(amazon / "efa/lib/libfabric.so.1.30.0", "libfabric.so.1")
    library(amazon / "ofi-nccl" / plugin, needs=(fabric,))
    mpi = amazon / "openmpi5"
    linked(mpi / "lib/libmpi.so.40.40.7", "libmpi.so.40", (fabric,))
    for name in ("bin/mpirun", "bin/prted"):
        (mpi / name).parent.mkdir(exist_ok=True)
        (mpi / name).write_text(MPIRUN)
        (mpi / name).chmod(0o755)
    if extra_libfabric:
        library(work / "tree" / extra_libfabric.lstrip("/"), "libfabric.so.1")
    script = work / "efa_installer.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    archive = folder / f"aws-efa-installer-{version}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(work, "aws-efa-installer")
    return Installer(version, hashlib.sha256(archive.read_bytes()).hexdigest())
