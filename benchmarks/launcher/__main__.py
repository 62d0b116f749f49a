"""`make bench-launcher`: what the launcher costs, beside its peers in the same run.

Prints one table (or JSON with `--json`) and ends with 1 when a bound is missed. A run of all rows
writes `benchmarks/results/launcher.json`. `python -m benchmarks.launcher pump told` measures a few.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from subprocess import SubprocessError

from benchmarks.launcher import (
    agent,
    desk,
    elsewhere,
    load,
    lost,
    metrics,
    mpi,
    outages,
    parent,
    pump,
    reports,
    seeing,
    soak,
    told,
)
from benchmarks.launcher.jobs import TrivialJob, TwoHostJob, environ, phases
from benchmarks.launcher.software import (
    INCUMBENT,
    TORCHRUN,
    TORCHX,
    Software,
    installed_size,
    software,
)
from benchmarks.parameter_server import rows as parameter_server
from benchmarks.report import Beginning, report
from benchmarks.table import Row, at_least_times, under
from benchmarks.timing import first_line, interleaved, wall
from tests.support.venvs import UnavailableError

RESULTS = Path(__file__).parents[1] / "results" / "launcher.json"
_MB = 1_000_000


def main() -> int:
    options = _options()
    # nohup has its children ignore what a terminal sends when it closes, and a row closes one
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    began = Beginning.now()
    try:
        with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
            rows, broken = _measure(Path(folder), options.rows, options.rounds)
    except UnavailableError as reason:
        print(f"bench-launcher: a peer is missing: {reason}", file=sys.stderr)
        return 1
    results = options.results or (None if options.rows else RESULTS)
    return report("bench-launcher", began, rows, broken, results=results, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("rows", nargs="*", help=f"all, or some of: {' '.join(STEPS)}")
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    parser.add_argument("--results", type=Path, help="write them there, too")
    parser.add_argument("--rounds", type=int, default=15, help="of the short commands")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in STEPS]
    if unknown:
        parser.error(f"no rows named {', '.join(unknown)}; there are {' '.join(STEPS)}")
    return options


def _measure(folder: Path, names: Sequence[str], rounds: int) -> tuple[list[Row], dict[str, str]]:
    """The rows, and why a group of them broke off, by its name. Raises UnavailableError."""
    rows: list[Row] = []
    broken: dict[str, str] = {}
    for name, step in STEPS.items():
        if names and name not in names:
            continue
        try:
            for row in step(folder, rounds):
                print(f"bench-launcher: {row.what} done", file=sys.stderr)
                rows.append(row)
        except (
            RuntimeError,
            AssertionError,
            OSError,
            SubprocessError,
        ) as error:  # the other figures stand
            broken[name] = f"{type(error).__name__}: {error}"
    return rows, broken


def _trivial_job(folder: Path, measured: Software, rounds: int) -> Iterator[Row]:
    job = TrivialJob(folder, measured)
    times = interleaved({"bare": job.bare, "ours": job.ours, INCUMBENT: job.incumbent}, rounds)
    bare = times["bare"].median
    ours, peer = times["ours"].median - bare, times[INCUMBENT].median - bare
    yield Row(
        "trivial one-host job over bare `python script`",
        "s",
        ours,
        {INCUMBENT: peer},
        (at_least_times(4, peer, ours), under(ours, 0.2, "s")),
        f"medians of {rounds}: bare {bare:.3f}, ours {times['ours'].median:.3f}, "
        f"incumbent {times[INCUMBENT].median:.3f} s",
    )


def _sizes(measured: Software) -> Iterator[Row]:
    ours = installed_size(measured.muster, "muster-training")
    peer = installed_size(measured.incumbent, "sagemaker-training")
    yield Row(
        "installed size with dependencies",
        "MB",
        ours.files / _MB,
        {INCUMBENT: peer.files / _MB},
        (at_least_times(100, peer.files, ours.files), under(ours.files / _MB, 2.1, "MB")),
        f"{len(ours.distributions)} distribution of ours, {len(peer.distributions)} of the peer; "
        f"modules that Python compiles come on top: ours {ours.caches / _MB:.1f}, "
        f"peer {peer.caches / _MB:.1f} MB",
    )
    runs = (ours.files - ours.desk) / _MB
    yield Row(
        "of that, what a container runs: all that `train` and ranks import",
        "MB",
        runs,
        {},
        (under(runs, 1.0, "MB"),),
        "without commands, local, report, sdk, the debugger, pytest's plugin and metadata",
    )


def _commands(folder: Path, measured: Software, rounds: int) -> Iterator[Row]:
    given = environ(measured.muster)
    muster = str(measured.muster / "muster")
    job = TrivialJob(folder, measured)
    base, script = str(job.base()), str(job.script())
    runs = iter(range(1_000_000))

    def local() -> float:
        output = str(folder / f"local-{next(runs)}")
        return first_line([muster, "local", script, "--output", output], given)

    help_of = {
        TORCHRUN: (measured.development, "torchrun"),
        TORCHX: (measured.torchx, "torchx"),
    }
    peers = {
        name: lambda place=place, tool=tool: wall([str(place / tool), "--help"], environ(place))
        for name, (place, tool) in help_of.items()
    }
    times = interleaved(
        {
            "help": lambda: wall([muster, "--help"], given),
            "plan": lambda: wall([muster, "plan", "--base-dir", base], given),
            "local": local,
            **peers,
        },
        rounds,
    )
    shown = {name: times[name].median for name in help_of}
    bounds = {"help": ("`muster --help`", 0.1), "plan": ("`muster plan`", 0.2),
              "local": ("first line of `muster local`", 0.3)}  # fmt: skip
    for name, (what, limit) in bounds.items():
        value = times[name].median
        detail = f"peers: their --help; best of ours {times[name].best:.3f} s"
        yield Row(what, "s", value, shown, (under(value, limit, "s"),), detail)


def _two_hosts(folder: Path, measured: Software, rounds: int) -> Iterator[Row]:
    job = TwoHostJob(folder, measured)
    times = interleaved({"ours": job.ours, "torchrun": job.bare}, rounds)
    ours, bare = times["ours"].median, times["torchrun"].median
    share = ours - bare
    yield Row(
        "our share of a two-host no-op torchrun job",
        "s",
        share,
        {},
        (under(share, 1, "s"),),
        f"medians of {rounds}: muster local {ours:.3f} s, two bare torchrun {bare:.3f} s; "
        f"phases of the last run {phases(job.output())}",
    )


_software = cache(software)  # made for the first rows that need it
STEPS: Mapping[str, Callable[[Path, int], Iterator[Row]]] = {
    "trivial": lambda folder, rounds: _trivial_job(folder, _software(), rounds),
    "sizes": lambda folder, rounds: _sizes(_software()),
    "commands": lambda folder, rounds: _commands(folder, _software(), rounds),
    "elsewhere": lambda folder, rounds: elsewhere.rows(
        folder / "elsewhere", max(3, rounds // 3), _software().muster, _software().torchx
    ),
    "hosts": lambda folder, rounds: _two_hosts(folder, _software(), max(3, rounds // 3)),
    "parent": lambda folder, rounds: parent.rows(folder, os.environ.get("PARENT", "")),
    "mpi": lambda folder, rounds: mpi.rows(_software(), max(3, rounds // 3)),
    "parameters": lambda folder, rounds: parameter_server.rows(rounds),
    "agent": lambda folder, rounds: agent.rows(),
    "pump": lambda folder, rounds: pump.rows(folder, _software()),
    "told": lambda folder, rounds: told.rows(folder),
    "lost": lambda folder, rounds: lost.rows(folder),
    "outages": lambda folder, rounds: outages.rows(folder),
    "desk": lambda folder, rounds: desk.rows(folder / "desk"),
    "report": lambda folder, rounds: reports.rows(folder / "report", rounds),
    "seeing": lambda folder, rounds: seeing.rows(folder / "seeing", rounds),
    "load": lambda folder, rounds: load.rows(),
    "metrics": lambda folder, rounds: metrics.rows(folder / "metrics"),
    "soak": lambda folder, rounds: soak.rows(),
}


if __name__ == "__main__":
    sys.exit(main())
