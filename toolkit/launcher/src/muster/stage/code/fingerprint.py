"""A hash of the code folder, so that hosts with different code notice it (F24)."""

from __future__ import annotations

import os

_CONTENT_LIMIT = 64 << 20  # bytes; content after them counts by name and size only
_ENTRY_LIMIT = 20_000
_IGNORED = frozenset({"__pycache__", ".git"})  # these differ between equal hosts
_CHUNK = 1 << 20


def fingerprint(folder: str) -> str:
    """64 hexadecimal digits over names and contents, the same wherever the folder lies.

    Byte-compiled files and version control do not count, nor do times, owners and modes. Bounded:
    only the first 64 MiB in order of names are read. Links count by their text and are not
    followed. A file that cannot be read counts by its name.
    """
    import hashlib

    digest = hashlib.sha256()
    left = _CONTENT_LIMIT
    for path, size, link in _files(folder):
        head = f"{len(path)}:{path}{size}:{link}"
        digest.update(os.fsencode(head))
        if link or size > left:
            continue
        left -= size
        try:
            with open(os.path.join(folder, path), "rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except OSError:
            digest.update(b"?")
    return digest.hexdigest()


def _files(folder: str) -> list[tuple[str, int, str]]:
    """(path, size, text of the link or "") of everything but folders, in order."""
    found: list[tuple[str, int, str]] = []
    folders = [""]
    while folders and len(found) < _ENTRY_LIMIT:
        here = folders.pop()
        try:
            with os.scandir(os.path.join(folder, here)) as scan:
                batch = sorted(scan, key=lambda entry: os.fsencode(entry.name))
        except OSError:
            continue
        below = []
        for entry in batch:
            path = f"{here}/{entry.name}" if here else entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED:
                    below.append(path)
            elif not entry.name.endswith(".pyc"):
                found.append((path, *_facts(entry)))
        folders.extend(reversed(below))
    return found


def _facts(entry: os.DirEntry[str]) -> tuple[int, str]:
    """Size, and the text of a link; what is neither a file nor a link counts by its name."""
    try:
        if entry.is_symlink():
            return 0, os.readlink(entry.path)
        return (entry.stat().st_size, "") if entry.is_file() else (0, "?")
    except OSError:
        return 0, "?"
