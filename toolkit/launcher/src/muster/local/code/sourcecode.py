"""The user's code as the SDK ships it: one archive, taken once, kept in the run folder.

An archive and not the folder itself: every host gets the same code even when a file is edited
meanwhile, what runs goes the way that it goes on SageMaker, and nothing is ever written into the
user's folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from muster.arguments import UsageError
from muster.local.code.ignored import NOTHING, OWN, Ignored
from muster.local.record.layout import MARK, RUNS

MAX_BYTES = 1 << 30
MAX_FILES = 50_000
LEFT_OUT = frozenset({RUNS, "__pycache__", ".git", ".hg", ".svn", "node_modules"})
ENVIRONMENT_MARK = "pyvenv.cfg"  # a folder with it is a virtual environment


def pack(
    source_dir: str,
    archive: str,
    left_out: Collection[str],
    check: Callable[[], None] = lambda: None,
    more: Mapping[str, bytes] = {},
    ignored: Ignored = NOTHING,
) -> None:
    """Writes the archive, calling `check` before each file. `more`: further files, by name.
    `ignored`: what is left out, too.

    Raises UsageError when the folder is too large to be code, or part of it cannot be read.
    """
    import io
    import tarfile

    os.makedirs(os.path.dirname(archive), exist_ok=True)
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as tar:
        for path, _ in _sized(source_dir, left_out, ignored):
            check()
            with _reading(path, source_dir):
                tar.add(path, os.path.relpath(path, source_dir), recursive=False)
        for name, content in more.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))


def measure(
    source_dir: str, left_out: Collection[str], ignored: Ignored = NOTHING
) -> tuple[int, int]:
    """(bytes, files) that `pack` would pack. Raises UsageError as it does."""
    sizes = [size for _, size in _sized(source_dir, left_out, ignored)]
    return sum(sizes), len(sizes)


def _sized(
    source_dir: str, left_out: Collection[str], ignored: Ignored
) -> Iterator[tuple[str, int]]:
    """Every file to pack with its size, as long as all of them together may be code."""
    total = 0
    for count, path in enumerate(find_files(source_dir, left_out, ignored), start=1):
        with _reading(path, source_dir):
            size = os.path.getsize(path)
        total += size
        if total > MAX_BYTES or count > MAX_FILES:
            raise UsageError(
                f"{source_dir} holds over {MAX_FILES:,} files or {MAX_BYTES >> 20} MiB,"
                " too much to be code",
                f"name what is not code in {OWN}, pass data with --channel, or put the "
                "script into a folder of its own",
            )
        yield path, size


def find_files(folder: str, left_out: Collection[str], ignored: Ignored = NOTHING) -> Iterator[str]:
    """Regular files below the folder, links followed, in a fixed order.

    Left out: what is `ignored`, earlier runs, the folders `left_out` (real paths), virtual
    environments, version control, caches. Raises UsageError for a folder that cannot be read.
    """
    seen: set[str] = set()
    stack = [folder]
    while stack:
        here = stack.pop()
        real = os.path.realpath(here)
        if real in seen or real in left_out:
            continue
        seen.add(real)
        with _reading(here, folder):
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        if here != folder and any(entry.name in (ENVIRONMENT_MARK, MARK) for entry in entries):
            continue
        for entry in entries:
            if ignored.holds(os.path.relpath(entry.path, folder)):
                continue
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
