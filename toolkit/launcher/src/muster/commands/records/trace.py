"""`muster trace`: a run as a trace that Perfetto opens."""

from __future__ import annotations

import argparse
import gc
import gzip
import os
import sys
from typing import IO

from muster.arguments import Parser, UsageError
from muster.commands.records.report import default_name, place_of, reading
from muster.local.paths import shown
from muster.local.record.history import LATEST
from muster.report.read import OpenRecord, open_record
from muster.report.trace.make import TraceMade, make_trace
from muster.types.files import write_with
from muster.types.names import counted
from muster.types.plain import size_text

EXAMPLES = """\
A process for each host, a thread for each rank: phases, steps, standstills, failures, calls of
muster_collectives, processor and memory, and what the script wrote with torch.profiler.
RUN is what `muster report` takes.

examples:
  muster trace                          the latest run, as trace-NAME.json.gz
  muster trace output.tar.gz -o t.json  a job that ran elsewhere
"""
SHOWN_MISSING = 12


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    parser.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help="which run (latest)")
    what = "the trace (trace-NAME.json.gz); packed where it ends in .gz"
    parser.add_argument("-o", "--output", metavar="FILE", help=what)


def run(args: argparse.Namespace) -> int:
    """Returns 0, whatever the run's end was. Raises UsageError."""
    gc.disable()  # as in report
    path, live = place_of(args.run)
    with reading(args.run), open_record(path, os.environ, live, traces=True) as opened:
        record = opened.record
        target = args.output or default_name("trace", [record.name], ".json.gz")
        made = _written(opened, target)
    print(f"{record.name}: {counted(made.hosts, 'host')}, {counted(made.ranks, 'rank')}, "
          f"{made.events:,} events, {counted(made.profiles, 'profile')} of torch")  # fmt: skip
    print(f"  trace {shown(os.path.abspath(target))} ({size_text(os.path.getsize(target))})")
    print("  next  open it at https://ui.perfetto.dev, or in another viewer of Chrome's traces")
    for line in made.missing[:SHOWN_MISSING]:
        print(f"  lacks {line}", file=sys.stderr)
    if len(made.missing) > SHOWN_MISSING:
        print(f"  lacks {len(made.missing) - SHOWN_MISSING} more", file=sys.stderr)
    return 0


def _written(opened: OpenRecord, target: str) -> TraceMade:
    found: list[TraceMade] = []

    def write(file: IO[bytes]) -> None:
        if target.endswith(".gz"):
            with gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as packed:
                found.append(make_trace(opened, packed))
        else:
            found.append(make_trace(opened, file))

    try:
        if os.path.isdir(target):
            raise IsADirectoryError(21, "it is a folder", target)
        write_with(target, write)
    except OSError as error:
        why = f"{target} cannot be written: {error.strerror or error}"
        raise UsageError(why, "name another file with --output FILE") from None
    return found[0]
