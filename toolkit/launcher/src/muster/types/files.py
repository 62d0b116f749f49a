"""Files: programs that are found, texts that may be absent, and documents that are written whole or
not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import IO, Any


def find_program(folders: Iterable[str], name: str) -> str:
    """The first executable file of that name in the folders, or ""."""
    for folder in folders:
        path = os.path.join(folder, name)
        if folder and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return ""


def search_path(first: str, rest: str) -> str:
    """`first` before the others; an empty rest would mean the current folder."""
    return f"{first}{os.pathsep}{rest}" if rest else first


def read_text(path: str, limit: int = 1 << 20) -> str:
    """The first `limit` characters, -1 for all; "" where the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except (OSError, ValueError):
        return ""


def open_plain(path: str) -> IO[bytes]:
    """For folders that scripts write to: follows no link, waits for no writer. Raises OSError, also
    for what is no plain file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no plain file", path)
    return open(fd, "rb")


def link_target(path: str) -> str:
    """Where a link leads, "" where it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_object(path: str) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none that can be read."""
    import json

    try:
        document = json.loads(read_text(path, -1))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write_whole(path: str, text: str) -> None:
    """Follows no link and waits for no reader, whatever lies at the path. Raises OSError."""
    write_with(path, lambda file: file.write(text.encode()))


def write_with(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """`write_whole` of what `write` writes into a file. Raises what that raises."""
    part = f"{path}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, 0o644), "wb") as file:
            write(file)
        os.replace(part, path)
    except BaseException:
        try:
            os.unlink(part)
        except OSError:
            pass  # it was not made
        raise


def write_private(path: str, text: str) -> None:
    """A new file that is this user's alone. Raises OSError, also where there is something."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
