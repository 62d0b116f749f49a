"""A disk of a host's own, which can be filled: what it holds comes to the run folder at the end.

A tmpfs in the mounts of the namespace init, in the place of what a job writes below opt/ml. Hosts
take it over with their opt/ml; it outlives them, and not the init.
"""

from __future__ import annotations

import os
import shutil
import stat

from muster.local.backends.netns import kernel
from muster.types.plain import shortened

FOLDERS = ("model", "checkpoints", "output/data")
MOST_SAID = 400


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

    def keep(self) -> str:
        """What it holds into the run folder, at the end. Returns what could not be kept of it, in
        words, or ""."""
        lost: list[str] = []
        for name, fd in self._kept.items():
            kept = f"/proc/self/fd/{fd}"
            try:
                shutil.copytree(
                    self._at(name), kept, symlinks=True, ignore=_without_data, dirs_exist_ok=True
                )
            except shutil.Error as error:  # of each file that was passed over
                lost += [f"{source}: {why}" for source, _, why in error.args[0]]
            except OSError as error:
                lost.append(f"{self._at(name)}: {error.strerror}")
            os.close(fd)
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        return f"{shortened(lost[0], MOST_SAID)}{more}" if lost else ""

    def _at(self, name: str) -> str:
        return os.path.join(self._base, name)


def _without_data(folder: str, names: list[str]) -> set[str]:
    """Sockets, pipes and devices: nothing to keep."""
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    modes = {name: os.lstat(f"{folder}/{name}").st_mode for name in names}
    return {name for name, mode in modes.items() if not any(fits(mode) for fits in kept)}
