"""Where things lie in an isolated host, and which paths hold which."""

from __future__ import annotations

import os
from collections.abc import Iterable

HOME = "/tmp/home"
ML = "/opt/ml"
CHECKPOINTS = f"{ML}/checkpoints"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths without those below another one of them."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not is_below(path, kept):
            kept.append(path)
    return kept


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether the path is one of the folders or lies in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def unsuitable(run_folder: str) -> str:
    """Why the run folder cannot be seen by hosts with an /opt/ml of their own, or ""."""
    if is_below(run_folder, [ML]):
        return f"the run folder {run_folder} lies below {ML}, which each host has of its own"
    return ""


def shown(path: str) -> str:
    """The shorter of the absolute path and the one from here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
