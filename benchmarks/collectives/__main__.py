"""`make bench-collectives`: the collective backend beside gloo and Open MPI, in turns.

Prints one table (or JSON with `--json`) and ends with 1 when a bound is missed. A run of all rows
writes `benchmarks/results/collectives.json`; `ONLY=sizes,ddp` or the names as words measure a few.
Bounds are medians of the ratios within rounds: gates.py says how a row is judged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.collectives import (
    checked,
    core,
    deepspeed,
    lost,
    matrix,
    nodes,
    p2p,
    sizes,
    starts,
    veth,
)
from benchmarks.collectives.training import rows as training
from benchmarks.report import Beginning, report
from benchmarks.stolen import read_times, stolen_percent
from benchmarks.table import Row
from muster_collectives.tools.bench.launch import find_mpirun

RESULTS = Path(__file__).parents[1] / "results" / "collectives.json"
STEPS: Mapping[str, Callable[[int], Iterator[Row]]] = {
    "sizes": sizes.sizes,
    "huge-pages": sizes.huge_pages,
    "types": sizes.types,
    "shards": sizes.shards,
    "calls": sizes.calls,
    "p2p": p2p.rows,
    "verbs": lambda rounds: matrix.rows(max(3, rounds // 2)),
    "ddp": training.ddp,
    "sharded": training.sharded,
    "hooks": training.hooks,
    "deepspeed": deepspeed.rows,
    "checked": checked.rows,
    "starts": starts.rows,
    "lost": lambda rounds: lost.rows(max(3, rounds // 2)),
    "lost-nodes": lambda rounds: lost.between_nodes(max(3, rounds // 3)),
    "veth": veth.rows,
    "nodes": lambda rounds: nodes.rows(max(3, rounds // 2)),
}


def main() -> int:
    options = _options()
    chosen = core.choose(os.environ)
    print(f"bench-collectives: core: {chosen}", file=sys.stderr)
    began = Beginning.now()
    rows, broken, stolen = _measure(options.rows, options.rounds)
    results = None if options.rows else RESULTS
    more = {"core": chosen, "rounds": options.rounds, "stolen_percent": stolen}
    return report(
        "bench-collectives", began, rows, broken, results=results, as_json=options.json, more=more
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("rows", nargs="*", help=f"all, or some of: {' '.join(STEPS)}")
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of the table")
    parser.add_argument("--rounds", type=int, default=9, help="A B C A B C turns; default 9")
    options = parser.parse_args()
    options.rows += [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = [name for name in options.rows if name not in STEPS]
    if unknown:
        parser.error(f"no rows named {', '.join(unknown)}; there are {' '.join(STEPS)}")
    if options.rounds < 1:
        parser.error("at least 1 round")
    missing = find_mpirun()[1]
    if missing:
        print(f"bench-collectives: without Open MPI: {missing}", file=sys.stderr)
    return options


class Measured(NamedTuple):
    """The rows; by group of rows why it `broke` off, and what share of the processors that this
    machine wanted meanwhile its host gave to others (`stolen_percent`)."""

    rows: list[Row]
    broken: dict[str, str]
    stolen_percent: dict[str, float | None]


def _measure(names: Sequence[str], rounds: int) -> Measured:
    rows: list[Row] = []
    broken: dict[str, str] = {}
    stolen: dict[str, float | None] = {}
    for name, step in STEPS.items():
        if names and name not in names:
            continue
        before = read_times()
        try:
            for row in step(rounds):
                print(f"bench-collectives: {row.what} done", file=sys.stderr)
                rows.append(row)
        except (RuntimeError, AssertionError, OSError, ValueError) as error:
            broken[name] = f"{type(error).__name__}: {error}"  # the other figures stand
        stolen[name] = stolen_percent(before, read_times())
        print(f"bench-collectives: {name}: {stolen[name]} % stolen", file=sys.stderr)
    return Measured(rows, broken, stolen)


if __name__ == "__main__":
    sys.exit(main())
