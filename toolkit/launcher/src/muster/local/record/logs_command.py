"""`muster logs`: what the ranks of a run wrote, from its record, also while they write."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

from muster.arguments import Parser, UsageError, whole_number
from muster.local.record import history, runfolder
from muster.local.record.history import LATEST, Run
from muster.local.record.layout import SUBMITTED
from muster.report.host import rank_files
from muster.types.run_files import LOGS

EXAMPLES = """\
examples:
  muster logs                     all ranks of the latest run, host by host
  muster logs --rank 0 -f         rank 0, until its run ends
  muster logs 20261121-103956-train --rank 3
"""
READ_BYTES = 1 << 16
POLL_S = 0.1


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    parser.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help="which run (latest)")
    parser.add_argument(
        "--rank", metavar="N", type=whole_number(0, 1 << 20), help="this rank alone, byte for byte"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")


def run(args: argparse.Namespace) -> int:
    """Returns 0. Raises UsageError where there is nothing to show."""
    found = history.find_run(args.run)
    shown = _Shown(found, args.rank)
    try:
        while args.follow and not history.is_over(found.path):
            shown.show()
            time.sleep(POLL_S)
        shown.show(to_the_end=True)
    except OSError as error:
        if error.filename is None:  # not of the run: what is shown cannot be written
            raise
        why = f"the logs of {found.name} cannot be read: {runfolder.in_words(error)}"
        raise UsageError(why) from None
    if not shown.count:
        which = "any rank" if args.rank is None else f"rank {args.rank}"
        fix = f"its logs are {found.path}/*/{LOGS}"
        if os.path.exists(os.path.join(found.path, SUBMITTED)):  # its hosts may not write here
            fix += f"; muster submit --follow {found.path} or the terminal that attends it has more"
        raise UsageError(f"{found.name} has no output of {which}", fix)
    return 0


class _Shown:
    """The files of a run's ranks, and how far each was shown. `count`: of those with output."""

    def __init__(self, found: Run, rank: int | None) -> None:
        self._run = found
        self._rank = rank
        self._files: dict[str, _Growing] = {}

    @property
    def count(self) -> int:
        return len(self._files)

    def show(self, to_the_end: bool = False) -> None:
        """What is new of each rank, in the order of hosts and ranks."""
        for path, host, rank in self._paths():
            if path not in self._files:
                name = "" if self._rank is not None else f"[{host}:{rank}] "
                self._files[path] = _Growing(path, name.encode())
            self._files[path].show()
            if to_the_end:
                self._files[path].end()

    def _paths(self) -> Iterator[tuple[str, str, int]]:
        for host in self._run.hosts or _hosts(self._run.path):
            for path, rank, _ in rank_files(os.path.join(self._run.path, host, LOGS)):
                if self._rank in (None, rank):
                    yield path, host, rank


def _hosts(path: str) -> list[str]:
    return [name for name in sorted(os.listdir(path)) if os.path.isdir(f"{path}/{name}/{LOGS}")]


class _Growing:
    """One file. With a prefix, whole lines; without, every byte as soon as it is there."""

    def __init__(self, path: str, prefix: bytes) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._out = sys.stderr.buffer if path.endswith(".err") else sys.stdout.buffer
        self._prefix = prefix
        self._partial = b""

    def show(self) -> None:
        while data := os.read(self._file, READ_BYTES):
            *lines, self._partial = (self._partial + data).split(b"\n")
            if not self._prefix:
                self._out.write(data)
                continue
            self._out.writelines(self._prefix + line + b"\n" for line in lines)
        self._out.flush()

    def end(self) -> None:
        """The last line, where it has no end."""
        if self._partial and self._prefix:
            self._out.write(self._prefix + self._partial + b"\n")
        self._out.flush()
        os.close(self._file)
