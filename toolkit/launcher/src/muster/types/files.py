"""Files: programs that are found, and documents that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable


def find_program(folders: Iterable[str], name: str) -> str:
    """The first executable file of that name in the folders, or ""."""
    for folder in folders:
        path = os.path.join(folder, name)
        if folder and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return ""


def write_whole(path: str, text: str) -> None:
    """Follows no link and waits for no reader, whatever lies at the path. Raises OSError."""
    part = f"{path}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError:
        try:
            os.unlink(part)
        except OSError:
            pass  # it was not made
        raise
