"""Where the files lie: a folder of our own in memory, of mode 700, with files of mode 600."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from muster_ssh import SshError

__all__ = ["PREFIX", "Place", "random_seed", "take", "write"]

PREFIX = "muster-ssh-"
_MEMORY = frozenset({"tmpfs", "ramfs"})


class Place(NamedTuple):
    """The folder, and whether it is in memory."""

    folder: str
    in_memory: bool


def take(candidates: Sequence[str] = ("/dev/shm", "/run", "/tmp")) -> Place:
    """Makes the folder, or finds that of an earlier start in the same container.

    In memory if any candidate is and can be written to, else below the temporary folder. Its name
    has the user and the container, as hosts may share /dev/shm. Raises SshError.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = file.read()
    name = f"{PREFIX}{os.geteuid()}-{os.stat('/proc/self/ns/mnt').st_ino}"
    for parent in candidates:
        if filesystem(parent, mounts) in _MEMORY and _own(os.path.join(parent, name)):
            return Place(os.path.join(parent, name), True)
    for parent in dict.fromkeys((*candidates, tempfile.gettempdir())):
        if _own(os.path.join(parent, name)):
            return Place(os.path.join(parent, name), False)
    raise SshError(
        f"no folder for keys: none of {', '.join(candidates)} can be written to by user "
        f"{os.geteuid()}: give the container a /dev/shm (docker run --tmpfs /dev/shm)"
    )


def filesystem(path: str, mounts: str) -> str:
    """The kind of file system that `path` lies on, of the text of /proc/self/mountinfo."""
    real, best, kind = os.path.realpath(path), "", ""
    for row in mounts.splitlines():
        before, _, after = row.partition(" - ")
        point = before.split(" ")[4]
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of several in one place the last one counts
            best, kind = point, after.split(" ")[0]
    return kind


def write(path: str, text: str, mode: int = 0o600) -> None:
    """The whole file or the one before, never a part, and with no other mode at any time."""
    new = f"{path}.{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(new, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    os.replace(new, path)


def random_seed(folder: str) -> bytes:
    """32 random bytes of this container, the same again when sshd is started again."""
    path = os.path.join(folder, "seed")
    try:
        if not os.path.exists(path):
            write(path, secrets.token_hex(32))
        with open(path, encoding="ascii") as file:
            return bytes.fromhex(file.read())
    except (OSError, ValueError) as error:
        raise SshError(f"{path} cannot be used: {error}: remove {folder}") from error


def _own(folder: str) -> bool:
    """Whether the folder is there now, a real one, ours, and closed to all others."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    found = os.lstat(folder)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and stat.S_IMODE(found.st_mode) == 0o700
