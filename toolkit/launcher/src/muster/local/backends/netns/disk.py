"""A disk of a host's own, which can be filled: what it holds comes to the run folder at the end.

A tmpfs in the mounts of the namespace init, in the place of what a job writes below opt/ml. Hosts
take it over with their opt/ml; it outlives them, and not the init.
"""

from __future__ import annotations

import os
import shutil

from muster.local.backends.netns import kernel

FOLDERS = ("model", "checkpoints", "output/data")


class Disk:
    """Of the host with this opt/ml. Raises OSError."""

    def __init__(self, base: str) -> None:
        self._base = base
        kept = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._kept = {name: os.open(self._at(name), kept) for name in FOLDERS}
        below = self._at(FOLDERS[0])
        kernel.mount("tmpfs", below, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755")
        for name in reversed(FOLDERS):  # the first hides the others
            os.makedirs(f"{below}/{name}")
            kernel.mount(f"{below}/{name}", self._at(name), flags=kernel.MS_BIND)

    def keep(self) -> None:
        """What it holds into the run folder, and the disk is gone. Raises OSError."""
        for name, fd in self._kept.items():
            kept = f"/proc/self/fd/{fd}"
            shutil.copytree(self._at(name), kept, symlinks=True, dirs_exist_ok=True)
            os.close(fd)

    def _at(self, name: str) -> str:
        return os.path.join(self._base, name)
