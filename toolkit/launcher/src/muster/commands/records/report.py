"""`muster report`: one page that says what a run did and why it ended so, or what differs between
two runs."""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from muster.arguments import Parser, UsageError
from muster.local.paths import shown
from muster.local.record import history, runfolder
from muster.local.record.history import LATEST
from muster.report.compare import compare
from muster.report.figures import RunFigures, as_json, figures_of
from muster.report.read import NoRecord, read_record
from muster.report.verdict import RunVerdict
from muster.types.files import write_whole

EXAMPLES = """\
RUN is a name that `muster history` prints, latest, a run folder, the folder output/data/muster of a
job, an output.tar.gz, or a folder in which records of several hosts lie.

examples:
  muster report                             the latest run, as report-NAME.html
  muster report output.tar.gz -o why.html   a job that ran elsewhere
  muster report 20261121-103956-train latest    what differs between two runs
"""
SHOWN_MISSING = 4


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    parser.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help="which run (latest)")
    parser.add_argument("other", metavar="RUN2", nargs="?", help="compare the first with this one")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (report-NAME.html)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; no page")


def run(args: argparse.Namespace) -> int:
    """Returns 0, whatever the run's end was. Raises UsageError."""
    if args.json and args.output:
        raise UsageError("--json prints, so there is no page for --output", "leave one of them out")
    gc.disable()  # millions of values of JSON, none in a circle: a quarter of the time
    runs = [_figures(name) for name in (args.run, args.other) if name is not None]
    if args.other is not None and runs[0].name == runs[1].name:
        runs[1] = runs[1]._replace(name=f"{runs[1].name} (2)")
    comparison = compare(*runs) if args.other is not None else None
    if args.json:
        document = {"schema": 1, "runs": as_json(runs)} if comparison else as_json(runs[0])
        if comparison:
            document["comparison"] = as_json(comparison)
        print(json.dumps(document, indent=2))
        return 0
    from muster.report import page

    try:
        text = page.comparison_page(comparison, runs) if comparison else page.page(runs[0])
    except page.NoJinja:
        fix = "pip install jinja2, or print the figures with --json"
        raise UsageError("the page is made with Jinja2, which is not installed", fix) from None
    path = args.output or default_name("report", [one.name for one in runs], ".html")
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(21, "it is a folder", path)
        if os.path.exists(path) and not os.path.isfile(path):  # not replaced: /dev/stdout, a pipe
            raise FileExistsError(17, "it is no regular file", path)
        write_whole(path, text)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise UsageError(why, "name another file with --output FILE") from None
    _say(comparison.verdict if comparison else runs[0].verdict, path)
    for line in [line for one in runs for line in one.missing][:SHOWN_MISSING]:
        print(f"  lacks {line}")
    return 0


def default_name(prefix: str, names: Sequence[str], ending: str) -> str:
    """Of a file about runs, in the current folder."""
    plain = ["".join(c if c.isalnum() or c in "-_." else "-" for c in one)[:80] for one in names]
    return os.path.join(os.curdir, f"{prefix}-{'-and-'.join(plain)}{ending}")


def _say(verdict: RunVerdict, path: str) -> None:
    print(verdict.headline)
    for name, lines in (("why", verdict.why), ("next", verdict.next)):
        for line in lines:
            print(f"  {name:<5} {line}")
    print(f"  page  {shown(os.path.abspath(path))}")


def _figures(name: str) -> RunFigures:
    path, live = place_of(name)
    with reading(name):
        return figures_of(read_record(path, os.environ, live))


@contextmanager
def reading(name: str) -> Iterator[None]:
    """What goes wrong with the record of that name becomes a UsageError with its fix."""
    try:
        yield
    except NoRecord as error:
        fix = "name a run folder, output/data/muster of a job, or its output.tar.gz"
        raise UsageError(str(error), fix) from None
    except OSError as error:
        fix = ""
        if isinstance(error, PermissionError):
            fix = "it belongs to another user: ask for it, or run this as that user"
        raise UsageError(f"{name} cannot be read: {runfolder.in_words(error)}", fix) from None


def place_of(name: str) -> tuple[str, bool]:
    """The folder or archive that the name means, and whether its run goes on. Raises UsageError."""
    try:
        found = history.find_run(name)
        return found.path, found.state == "running"
    except UsageError:
        if not os.path.exists(name):
            raise
        return name, False
