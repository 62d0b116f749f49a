"""Every verb of torch.distributed beside gloo, at four sizes, on one node and over several: the
least of the four ratios is judged, so that no choice of a verb or a size loses by this backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

from benchmarks.collectives.gates import Gate, Ratio, ratio, settled
from benchmarks.collectives.links import links, placed, unpaced, why_not
from benchmarks.collectives.matrix_rank import VERBS
from benchmarks.collectives.nodes_job import run
from benchmarks.table import Bound, Row
from muster_collectives.tools.bench.cases import (
    GLOO,
    OURS,
    Case,
    Result,
    Spec,
)
from muster_collectives.tools.bench.report import size_text

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB)
GATE = Gate(GLOO, OURS, 1)
BUDGET_S = 0.2


class Layout(NamedTuple):
    """`nodes` 1: ranks of this machine, as they are started without more ado."""

    nodes: int
    local: int

    def __str__(self) -> str:
        return f"{self.local} ranks" if self.nodes == 1 else f"{self.nodes} x {self.local} nodes"


LAYOUTS = (Layout(1, 2), Layout(1, 4), Layout(2, 1), Layout(2, 2), Layout(4, 1))


def rows(rounds: int) -> Iterator[Row]:
    """Raises LinksError, RuntimeError."""
    reason = why_not()
    for layout in LAYOUTS:
        if layout.nodes > 1 and reason:
            yield Row(f"all verbs, {layout}", "x", None, {}, (), reason)
            continue
        with links(layout.nodes) if layout.nodes > 1 else nullcontext():
            unpaced(layout.nodes if layout.nodes > 1 else 0)
            found = _measured(layout, rounds)
        for verb in VERBS:
            yield _row(verb, layout, [each for each in found if each.case.verb == verb])


def _measured(layout: Layout, rounds: int) -> list[Result]:
    cases = [Case(verb, "float32", size, (OURS, GLOO)) for verb in VERBS for size in SIZES]

    def measured(chosen: Sequence[Case]) -> list[Result]:
        return _run(layout, chosen, rounds)

    return settled(measured(cases), lambda _: (GATE,), measured, 1)


def _row(verb: str, layout: Layout, found: Sequence[Result]) -> Row:
    each: Mapping[int, Ratio] = {
        result.case.size_bytes: beside
        for result in found
        if (beside := ratio(result, GATE)) is not None
    }
    least = min(beside.middle for beside in each.values())
    return Row(
        f"{verb}, {layout}: least of {len(each)} sizes", "x", least, {GLOO: 1.0},
        (Bound(f"at least {GATE.least:g}x gloo", least >= GATE.least),),
        "; ".join(f"{size_text(size)} {beside}" for size, beside in each.items()),
        more_is_better=True,
    )  # fmt: skip


def _run(layout: Layout, cases: Sequence[Case], rounds: int) -> list[Result]:
    alone: list[dict[str, str]] = [{} for _ in range(layout.local)]
    environs = placed(*layout) if layout.nodes > 1 else alone
    return run(Spec(tuple(cases), rounds, BUDGET_S), environs, "matrix_rank")
