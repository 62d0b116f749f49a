"""Hosts of a cluster behind mounts of their own: small, full and read-only disks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


def behind(mounts: Sequence[str], train: Sequence[str] = (), afterwards: str = ":") -> list[str]:
    """The command of a `train` (or of `train` in its place) that sees what `mounts` made.

    `afterwards`: shell for what the test wants to see of those mounts, which end with it.
    """
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets us make no user namespaces")
    shell = " && ".join([*mounts, f'{{ "$@"; code=$?; {afterwards}; exit $code; }}'])
    command = train or [sys.executable, "-m", "muster", "train"]
    return [*UNSHARE, "sh", "-c", shell, "sh", *command]


def small_disk(folder: object, options: str = "size=64k") -> list[str]:
    """Mounts that put a disk of its own in the place of a folder, which is made."""
    return [f"mkdir -p {folder}", f"mount -t tmpfs -o {options} tmpfs {folder}"]


def read_only_disk(folder: object) -> list[str]:
    """The same, and nothing can be written there: that the fault landed is tried."""
    return [
        *small_disk(folder),
        f"mount -o remount,ro {folder}",
        f"! touch {folder}/probe 2>/dev/null",
    ]
