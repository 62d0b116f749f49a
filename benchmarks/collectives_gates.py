"""From a measured case to a row with its bounds (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.table import Bound, Row
from muster_collectives.bench.cases import LIMIT, Result
from muster_collectives.bench.report import size_text

NOISE = 2.0  # of the in-place limit between rounds: the machine was somebody else's as well


class Gate(NamedTuple):
    """`slower` takes at least `least` times as long as `faster`; `what` says why it is asked."""

    slower: str
    faster: str
    least: float
    what: str = ""


def row(result: Result, ours: str, gates: Iterable[Gate], what: str = "") -> Row:
    """`ours`: whose time the row shows. A ratio is that of the medians or of the best rounds,
    whichever is larger: a round that another process has hit says nothing of either side.

    A bound that is missed while the limit itself varied more than twofold counts as not run.
    """
    case = result.case
    name = what or f"{case.verb} {case.dtype} {size_text(case.size_bytes)}, {result.ranks} ranks"
    bounds, words = [], []
    for gate in gates:
        times = result.times(gate.slower, gate.faster)
        if times is None:
            words.append(f"no {gate.slower} or {gate.faster}")
            continue
        text = f"{gate.slower} {gate.least:g}x {gate.faster} {gate.what}".rstrip()
        bounds.append(Bound(text, max(times) >= gate.least))
        words.append(f"{gate.slower}/{gate.faster} {times[0]:.2f}x median, {times[1]:.2f}x best")
    words += [f"{name}: {why}" for name, why in result.absent.items()]
    peers = {each: series.median * 1e6 for each, series in result.series.items() if each != ours}
    made = Row(name, "us", result.series[ours].median * 1e6, peers, tuple(bounds), "; ".join(words))
    return made if made.met else _quiet(made, result)


def _quiet(made: Row, result: Result) -> Row:
    """The row as it is, or as not run where the machine was too busy to judge it."""
    spread = result.series[LIMIT].spread if LIMIT in result.series else 1.0
    if spread <= NOISE:
        return made
    text = f"not judged: the in-place limit varied {spread:.1f}-fold between rounds; {made.detail}"
    return made._replace(ours=None, detail=text)
