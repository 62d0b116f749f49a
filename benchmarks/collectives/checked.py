"""Rows of checked mode: what a checksum of every frame between nodes costs.

Two ranks, each a node, over the loopback, where nothing is slower than the processor: on a real
network the same work hides behind the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.collectives.gates import Gate, judged, settled
from benchmarks.collectives.nodes_job import run
from benchmarks.table import Row
from muster_collectives.tools.bench.cases import Case, Result, Spec
from muster_collectives.tools.bench.report import size_text

KIB, MIB = 1 << 10, 1 << 20
DEFAULT, CHECKED = "default", "checked"
BUDGET_S = 0.6
# what a call may take with checksums, in calls without: the bytes are read once more on both sides
_MOST = {KIB: 1.25, MIB: 2.0}


def rows(rounds: int) -> Iterator[Row]:
    """Raises RuntimeError."""
    cases = [Case("all_reduce", "float32", size, (DEFAULT, CHECKED)) for size in _MOST]

    def measured(chosen: Sequence[Case]) -> list[Result]:
        nodes = [{"COLLECTIVES_NODE": name} for name in "ab"]
        return run(Spec(tuple(chosen), rounds, BUDGET_S), nodes)

    for result in settled(measured(cases), _gates, measured):
        size = result.case.size_bytes
        what = f"all_reduce {size_text(size)} with checksums, 2 nodes on the loopback"
        yield judged(result, CHECKED, _gates(result), what)


def _gates(result: Result) -> tuple[Gate, ...]:
    most = _MOST[result.case.size_bytes]
    return (Gate(DEFAULT, CHECKED, 1 / most, f"(at most {most:g}x as long)"),)
