"""What a host leaves, as one archive that travels to the desk: the record first, then results."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, cast

from muster.arguments import size_in_words
from muster.types.run_files import EVENTS, LOGS, METRICS, STACKS, SUMMARY

PIECE = 1 << 18
FIRST = (EVENTS, LOGS, STACKS, METRICS)
# of a host's folder: what came from the desk or from its own disk
LEFT_OUT = ("source", "site", "opt/ml/input/data")


def pack(run: str, write: Callable[[bytes], object], most_bytes: int) -> list[str]:
    """Writes the files of the run folder as a tar archive; what was left out, in words.

    A file that cannot be read is left out, and so is one that would make more than `most_bytes` of
    all; smaller ones that follow still come. Raises what `write` raises.
    """
    left_out: list[str] = []
    total = 0
    stream = cast("IO[bytes]", _Stream(write))
    with tarfile.open(fileobj=stream, mode="w|", bufsize=PIECE) as tar:
        for path, name in _files(run):
            try:
                size = os.lstat(path).st_size
                if total + size > most_bytes:
                    left_out.append(f"{name} ({size_in_words(size)})")
                    continue
                info = tar.gettarinfo(path, name)
                if info is None or not info.isreg():
                    continue
                info.type = tarfile.REGTYPE  # also of a file that has two names
                file = open(path, "rb")  # noqa: SIM115 - errors of the stream are not those of the file
            except OSError as error:
                left_out.append(f"{name} ({error.strerror})")
                continue
            with file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)
            total += size
    return left_out


class _Stream:
    """A file for tarfile, which only writes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(data)
        return len(data)


def _files(run: str) -> Iterator[tuple[str, str]]:
    """(path, name in the archive), no links; what says how the run ended comes first."""
    later = []
    if os.path.isfile(path := os.path.join(run, SUMMARY)):
        yield path, SUMMARY
    for folder, folders, files in os.walk(run):
        below = os.path.relpath(folder, run)
        if below == ".":
            continue
        _, _, place = below.partition(os.sep)
        folders[:] = [name for name in sorted(folders) if os.path.join(place, name) not in LEFT_OUT]
        for name in sorted(files):
            one = os.path.join(folder, name), os.path.join(below, name)
            if not os.path.islink(one[0]):
                if (place or name).split(os.sep)[0] in FIRST:
                    yield one
                else:
                    later.append(one)
    yield from later
