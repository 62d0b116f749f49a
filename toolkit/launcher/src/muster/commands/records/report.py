"""`muster report`: one page that says what a run did and why it ended so, or what differs between
two runs."""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from muster.arguments import Parser, UsageError, number
from muster.local import control_client
from muster.local.paths import shown
from muster.local.record import history, runfolder
from muster.local.record.history import LATEST
from muster.report.compare import compare
from muster.report.figures import as_json, figures_of
from muster.report.read import NoRecord, read_record
from muster.report.values import RunRecord
from muster.report.verdict import RunVerdict
from muster.types.files import write_whole

if TYPE_CHECKING:
    from muster.report.pace import Pace

EXAMPLES = """\
RUN is a name that `muster history` prints, latest, a run folder, the folder output/data/muster of a
job, an output.tar.gz, or a folder in which records of several hosts lie.

examples:
  muster report                             the latest run, as report-NAME.html
  muster report output.tar.gz -o why.html   a job that ran elsewhere
  muster report 20261121-103956-train latest    what differs between two runs
  muster report --scale a b c --price 3.06      how a program scales from runs of several sizes
"""
SHOWN_MISSING = 4


def add_arguments(parser: Parser) -> None:
    parser.description = EXAMPLES
    parser.usage = "muster report [RUN [RUN2]] [OPTIONS]\n       muster report --scale RUN RUN..."
    parser.add_argument("run", metavar="RUN", nargs="*", help="which run (latest)")
    parser.add_argument("--scale", action="store_true", help="runs of one program in several sizes")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (report-NAME.html)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; no page")
    add_price(parser, "with --scale: ")


def run(args: argparse.Namespace) -> int:
    """Returns 0, whatever the run's end was. Raises UsageError."""
    if args.json and args.output:
        raise UsageError("--json prints, so there is no page for --output", "leave one of them out")
    if args.price is not None and not args.scale:
        raise UsageError("--price is of runs in several sizes", "muster report --scale RUN RUN...")
    if args.scale:
        return scale_report([read(name) for name in args.run], args)
    if len(args.run) > 2:
        raise UsageError(
            f"one argument too many: {args.run[2]!r}",
            "two runs are compared; of runs in several sizes: muster report --scale RUN RUN...",
        )
    gc.disable()  # millions of values of JSON, none in a circle: a quarter of the time
    runs = [figures_of(read(name)) for name in args.run or [LATEST]]
    if len(runs) > 1 and runs[0].name == runs[1].name:
        runs[1] = runs[1]._replace(name=f"{runs[1].name} (2)")
    comparison = compare(*runs) if len(runs) > 1 else None
    if args.json:
        document = {"schema": 1, "runs": as_json(runs)} if comparison else as_json(runs[0])
        if comparison:
            document["comparison"] = as_json(comparison)
        print(json.dumps(document, indent=2))
        return 0
    from muster.report import page

    text = _made(lambda: page.comparison_page(comparison, runs) if comparison else
                 page.page(runs[0]))  # fmt: skip
    path = args.output or default_name("report", [one.name for one in runs], ".html")
    _write(path, text)
    _say(comparison.verdict if comparison else runs[0].verdict, path)
    for line in [line for one in runs for line in one.missing][:SHOWN_MISSING]:
        print(f"  lacks {line}")
    return 0


def add_price(parser: Parser, where: str = "") -> None:
    """The option that the pages of scaling have in common."""
    parser.add_argument(
        "--price",
        metavar="PER_HOST_HOUR",
        type=number("a number above 0", lambda value: 0 < value < math.inf),
        help=f"{where}of a host; adds what a million samples and waiting cost",
    )


def scale_report(
    records: Sequence[RunRecord], args: argparse.Namespace, notes: Sequence[str] = ()
) -> int:
    """The page or figures of runs in several sizes, as `output`, `json` and `price` of the
    arguments say. Returns 0. Raises UsageError."""
    from muster.report.pace import pace_of
    from muster.report.scale import CannotScale, scale

    try:
        figures = scale(_named(list(map(pace_of, records))), args.price, notes)
    except CannotScale as error:
        raise UsageError(*error.args) from None
    if args.json:
        print(json.dumps(as_json(figures), indent=2))
        return 0
    from muster.report import page

    path = args.output or default_name("report-scale", [figures.name], ".html")
    _write(path, _made(lambda: page.scale_page(figures)))
    _say(figures.verdict, path)
    for name, why in figures.left_out.items():
        print(f"  left out  {name}: {why}")
    return 0


def _named(paces: Sequence[Pace]) -> list[Pace]:
    """Each with a name of its own: folders of two jobs may give theirs the same."""
    seen: dict[str, int] = {}
    found = []
    for one in paces:
        seen[one.name] = count = seen.get(one.name, 0) + 1
        found.append(one if count == 1 else one._replace(name=f"{one.name} ({count})"))
    return found


def _made(make: Callable[[], str]) -> str:
    from muster.report.page import NoJinja

    try:
        return make()
    except NoJinja:
        fix = "pip install jinja2, or print the figures with --json"
        raise UsageError("the page is made with Jinja2, which is not installed", fix) from None


def _write(path: str, text: str) -> None:
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(21, "it is a folder", path)
        if os.path.exists(path) and not os.path.isfile(path):  # not replaced: /dev/stdout, a pipe
            raise FileExistsError(17, "it is no regular file", path)
        write_whole(path, text)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror or error}"
        raise UsageError(why, "name another file with --output FILE") from None


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


def read(name: str) -> RunRecord:
    """The record that the name means. Raises UsageError."""
    path, live = place_of(name)
    with reading(name):
        return read_record(path, os.environ, live)


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
        return name, os.path.isdir(name) and control_client.goes_on(name)
