"""`make bench-launcher`: what the launcher costs, beside its peers in the same run.

Prints one table (or JSON with `--json`), writes `benchmarks/results/launcher.json`, and ends
with 1 when a bound is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import load
from benchmarks.jobs import TrivialJob, TwoHostJob, environ, phases
from benchmarks.software import INCUMBENT, TORCHRUN, TORCHX, Software, installed_size, software
from benchmarks.table import Row, at_least_times, render, to_json, under
from benchmarks.timing import first_line, interleaved, wall
from tests.support.venvs import UnavailableError

RESULTS = Path(__file__).parent / "results" / "launcher.json"
_MB = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    parser.add_argument("--rounds", type=int, default=15, help="of the short commands")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        measured = software()
    except UnavailableError as reason:
        print(f"bench-launcher: a peer is missing: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        rows = list(_rows(Path(folder), measured, options.rounds))
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - began, 1),
        "rows": to_json(rows),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2) if options.json else render(rows))
    return 0 if all(row.met for row in rows) else 1


def _rows(folder: Path, measured: Software, rounds: int) -> Iterator[Row]:
    steps: tuple[Callable[[], Iterator[Row]], ...] = (
        lambda: _trivial_job(folder, measured, rounds),
        lambda: _sizes(measured),
        lambda: _commands(folder, measured, rounds),
        lambda: _two_hosts(folder, measured, max(3, rounds // 3)),
        load.rows,
    )
    for step in steps:
        for row in step():
            print(f"bench-launcher: {row.what} done", file=sys.stderr)
            yield row


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
        (under(ours.files / _MB, 1, "MB"),),
        f"{len(ours.distributions)} distribution of ours, {len(peer.distributions)} of the peer; "
        f"modules that Python compiles come on top: ours {ours.caches / _MB:.1f}, "
        f"peer {peer.caches / _MB:.1f} MB",
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


if __name__ == "__main__":
    sys.exit(main())
