"""Room on disks: how much is needed, how much is there, and how to say so (F52)."""

from __future__ import annotations

import errno
import os

from muster.types.plain import size_text

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def free_bytes(folder: str) -> int | None:
    """What this user may still write there, or None when the file system does not say."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize if stat.f_blocks else None


def shortage(folder: str, needed: int) -> str:
    """`needs 812 MiB, 64 MiB free`, or "" when there is room."""
    free = free_bytes(folder)
    if free is None or free >= needed:
        return ""
    return f"needs {size_text(needed)}, {size_text(free)} free"


def tree_bytes(folder: str) -> int:
    """The size of all files below `folder`, links not followed; what vanishes is not counted."""
    total, folders = 0, [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total
