"""Rows between two nodes of one rank over a link of no given rate: the processors are the limit."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.collectives.gates import Gate, judged, ratio, settled
from benchmarks.collectives.links import links, placed, unpaced, why_not
from benchmarks.collectives.nodes_job import run
from benchmarks.collectives.training import rows as training
from benchmarks.table import Bound, Row
from muster_collectives.tools.bench.cases import GLOO, LIMIT, Case, Result, Spec

SIZE_BYTES = 64 << 20
DEFAULT, FOUR = "default", "four streams"
BUDGET_S = 2.0
FASTER, SHARE = 2.0, 0.85


def rows(rounds: int) -> Iterator[Row]:
    """Raises LinksError, RuntimeError."""
    reason = why_not()
    if reason:
        yield Row("between nodes over links of no given rate", "ms", None, {}, (), reason)
        return
    case = Case("all_reduce", "float32", SIZE_BYTES, (GLOO, DEFAULT, FOUR, LIMIT))
    with links(2):
        unpaced(2)

        def measured(cases: list[Case]) -> list[Result]:
            return run(Spec(tuple(cases), rounds, BUDGET_S), placed(2, 1))

        faster = Gate(GLOO, DEFAULT, FASTER)
        (result,) = settled(measured([case]), lambda _: (faster,), lambda more: measured([*more]))
        yield _row(result, faster)
        yield from training.between_nodes(rounds)


def _row(result: Result, faster: Gate) -> Row:
    """One of its two bounds is enough."""
    times, share = ratio(result, faster), ratio(result, Gate(LIMIT, DEFAULT, SHARE))
    assert times is not None and share is not None
    met = times.middle >= FASTER or share.middle >= SHARE
    bound = Bound(f"{FASTER:g}x gloo, or {SHARE * 100:.0f} % of two copies", met)
    text = f"gloo {times}, of two copies {share}"
    return judged(result, DEFAULT, (), "all_reduce 64 MiB, 2 nodes x 1", "ms", [bound], text)
