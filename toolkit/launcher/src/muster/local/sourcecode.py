"""The user's code as the SDK ships it: one archive, taken once, kept in the run folder.

An archive and not the folder itself: every host gets the same code even when a file is edited
meanwhile, what runs goes the way that it goes on SageMaker, and nothing is ever written into the
user's folder. Source: sdk-and-local-mode.md 1.1, protocol.md 12.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.commands.arguments import UsageError
from muster.local.runfolder import MARK, RUNS

MAX_BYTES = 1 << 30
MAX_FILES = 50_000
LEFT_OUT = frozenset({RUNS, "__pycache__", ".git", ".hg", ".svn", "node_modules"})
ENVIRONMENT_MARK = "pyvenv.cfg"  # a folder with it is a virtual environment


def pack(
    source_dir: str, archive: str, run_folder: str, check: Callable[[], None] = lambda: None
) -> None:
    """Writes the archive, calling `check` before each file.

    Raises UsageError when the folder is too large to be code, or part of it cannot be read.
    """
    import tarfile

    os.makedirs(os.path.dirname(archive), exist_ok=True)
    size = count = 0
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as tar:
        for path in find_files(source_dir, run_folder):
            check()
            with _reading(path, source_dir):
                size += os.path.getsize(path)
            count += 1
            if size > MAX_BYTES or count > MAX_FILES:
                raise UsageError(
                    f"{source_dir} holds over {MAX_FILES:,} files or {MAX_BYTES >> 20} MiB,"
                    " too much to be code",
                    "put the script into a folder of its own, or name one with --source-dir",
                )
            with _reading(path, source_dir):
                tar.add(path, os.path.relpath(path, source_dir), recursive=False)


def find_files(folder: str, run_folder: str) -> Iterator[str]:
    """Regular files below the folder, links followed, in a fixed order.

    Left out: earlier runs, the run's own folder, virtual environments, version control, caches.
    Raises UsageError for a folder that cannot be read.
    """
    seen: set[str] = set()
    stack = [folder]
    while stack:
        here = stack.pop()
        real = os.path.realpath(here)
        if real in seen or real == run_folder:
            continue
        seen.add(real)
        with _reading(here, folder):
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        if here != folder and any(entry.name in (ENVIRONMENT_MARK, MARK) for entry in entries):
            continue
        for entry in entries:
            if entry.is_dir() and entry.name not in LEFT_OUT:
                stack.append(entry.path)
            elif entry.is_file():
                yield entry.path


@contextmanager
def _reading(path: str, source_dir: str) -> Iterator[None]:
    """What the system refuses about `path` is an error of the user's folder. A full disk is not."""
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        raise UsageError(
            f"{path} belongs to the code in {source_dir} and cannot be read: {error.strerror}",
            "make it readable or move it elsewhere; or put the script into a folder of its own,"
            " or name one with --source-dir",
        ) from error
