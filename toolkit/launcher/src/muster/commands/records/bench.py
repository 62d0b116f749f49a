"""`muster bench scale`: one program in several sizes on this machine, each size in its turn, and
the page that says how it scales."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from muster.arguments import Parser, UsageError, one_of, whole_number
from muster.commands.parser import INTERRUPTED_EXIT_CODE
from muster.commands.records.report import add_price, read, scale_report
from muster.local.api.jobs import RunningJob, finished
from muster.local.api.result import Result
from muster.local.preparation import refuse_crowd
from muster.local.request import MAX_HOSTS
from muster.types import plain
from muster.types.names import counted
from muster.types.values import NamedTuple

USAGE = "muster bench scale SCRIPT --ranks 1,2,4 [OPTIONS] [-- OPTIONS OF muster local]"
EXAMPLES = """\
examples:
  muster bench scale train.py --ranks 1,2,4
  muster bench scale train.py --ranks 1,2,4,8 --processes-per-host 4 -- \\
      --distribution torch_distributed --channel train=data/ -- --epochs 1

Every rank calls muster.metrics(step=..., samples=...). The sizes run in turns (1 2 4 1 2 4), so
that a machine which becomes slower shows as spread and not as scaling. What follows the first --
goes to `muster local`, what follows a second one to the script. Ctrl-C: the page of what there is.
"""
MOST_SIZES = 16
_OWN = ("--hosts", "--processes-per-host", "--instance-groups", "--output", "--json", "--ranks",
        "--model-plan", "--fault")  # fmt: skip


class Size(NamedTuple):
    """One size. `processes`: of each host."""

    ranks: int
    hosts: int
    processes: int


def add_arguments(parser: Parser) -> None:
    parser.usage = USAGE
    parser.description = EXAMPLES
    add = parser.add_argument
    add("what", metavar="scale", type=one_of("scale"), help="the only benchmark there is")
    add("script", metavar="SCRIPT", help="the entry point, as of muster local")
    add("--ranks", metavar="N,N", type=_sizes, required=True, help="the sizes, such as 1,2,4")
    add("--processes-per-host", metavar="N", type=whole_number(1, 1024), help="ranks of a host (1)")
    add("--repeat", metavar="N", type=whole_number(1, 100), default=2, help="runs of a size (2)")
    add("--oversubscribe", action="store_true", help="allow over 4 ranks for each processor")
    add("-o", "--output", metavar="FILE", help="the page (report-scale-NAME.html)")
    add("--json", action="store_true", help="print the figures as JSON; no page")
    add_price(parser)


def _sizes(text: str) -> tuple[int, ...]:
    parts = {plain.whole_number(one.strip(), 1, 99_999) for one in text.split(",")}
    found = sorted(one for one in parts if one is not None)
    if None in parts or not 2 <= len(found) <= MOST_SIZES:
        raise argparse.ArgumentTypeError(
            f"expected 2 to {MOST_SIZES} different numbers of ranks, such as 1,2,4, got {text!r}"
        )
    return tuple(found)


def run(args: argparse.Namespace) -> int:
    """0; the exit code of the first run that failed; 130 after Ctrl-C. Raises UsageError."""
    if args.json and args.output:
        raise UsageError("--json prints, so there is no page for --output", "leave one of them out")
    given = tuple(args.script_arguments)
    cut = given.index("--") if "--" in given else len(given)
    options, arguments = given[:cut], given[cut:]
    _refuse_own(options)
    per_host = args.processes_per_host
    sizes = [_size(ranks, per_host or 1) for ranks in args.ranks]
    notes = list(_crowd(sizes[-1].ranks, args.oversubscribe or "--oversubscribe" in options))
    for note in notes:
        _tell(note)
    if args.oversubscribe:
        options += ("--oversubscribe",)
    # `muster local` takes a number of processes only with a distribution, and with one, but no
    # number, it would start one for each device
    several = per_host is not None or any(
        one.partition("=")[0] == "--distribution" for one in options
    )
    results: list[Result] = []
    interrupted = False
    turns = [size for _ in range(args.repeat) for size in sizes]
    try:
        for at, size in enumerate(turns, 1):
            _tell(f"run {at} of {len(turns)}: {counted(size.ranks, 'rank')}")
            results.append(_run([args.script, *_asked(size, several), *options, *arguments]))
            end = results[-1]
            _tell(f"{'succeeded' if end.succeeded else end.failure}, {end.folder or 'no record'}")
    except KeyboardInterrupt:
        _tell(f"interrupted: the page is of {counted(len(results), 'run')}")
        interrupted = True
        notes.append(f"It was interrupted after {len(results)} of {len(turns)} runs.")
    folders = [one.folder for one in results if one.folder]
    try:
        scale_report([read(folder) for folder in folders], args, notes)
    except UsageError as error:
        if not interrupted:
            raise
        _tell(f"no page: {error.message}")
    if interrupted:
        return INTERRUPTED_EXIT_CODE
    return next((one.exit_code for one in results if not one.succeeded), 0)


def _refuse_own(options: Sequence[str]) -> None:
    """`muster local` takes the last of two, so that one size would run under the names of all."""
    for one in options:
        name = one.partition("=")[0].replace("_", "-")
        if name in _OWN:
            raise UsageError(
                f"{name} cannot stand behind --: muster bench runs several sizes and has to set it",
                "sizes are --ranks and --processes-per-host, before the --",
            )


def _size(ranks: int, per_host: int) -> Size:
    """Full hosts, or one that is not."""
    if ranks <= per_host:
        size = Size(ranks, 1, ranks)
    elif ranks % per_host:
        raise UsageError(
            f"{ranks} ranks do not fill hosts of {per_host}",
            f"ask for {ranks // per_host * per_host} or {(ranks // per_host + 1) * per_host}",
        )
    else:
        size = Size(ranks, ranks // per_host, per_host)
    if size.hosts > MAX_HOSTS:
        raise UsageError(
            f"{size.hosts} hosts are more than {MAX_HOSTS}, the most that one run can have",
            "put several ranks on a host with --processes-per-host",
        )
    return size


def _crowd(ranks: int, oversubscribe: bool) -> Iterator[str]:
    """What is to be said of more ranks than processors. Raises UsageError where `muster local`
    would refuse the largest size: after all the smaller ones had run."""
    processors = refuse_crowd(ranks, oversubscribe)
    if ranks > processors:
        yield (
            f"Up to {ranks} ranks share {counted(processors, 'processor')}: figures of sizes above "
            f"{processors} say nothing about machines of their own."
        )


def _asked(size: Size, several: bool) -> list[str]:
    """What `muster local` is asked for. Without a distribution it takes no number of processes."""
    words = [f"--hosts={size.hosts}"]
    return [*words, f"--processes-per-host={size.processes}"] if several else words


def _run(argv: Sequence[str]) -> Result:
    """One run, shown nowhere. Raises UsageError, and KeyboardInterrupt when it has ended."""
    try:
        return finished(RunningJob(argv, quiet=True))
    except ValueError as error:
        message, _, fix = str(error).partition("\n")
        raise UsageError(message, fix.strip()) from None


def _tell(text: str) -> None:
    sys.stderr.write(f"muster bench: {text}\n")
    sys.stderr.flush()
