"""Rows between nodes: 4 network namespaces x 2 ranks on links of 200 Mbit/s and of 1 Gbit/s, both
rank orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.collectives.gates import Gate, judged, ratio, settled
from benchmarks.collectives.links import BLOCK, CYCLIC, PAYLOAD, links, placed, shape, why_not
from benchmarks.collectives.nodes_job import run
from benchmarks.table import Bound, Row, at_least
from muster_collectives.core import Tuning
from muster_collectives.tools.bench.cases import Case, Result, Spec
from muster_collectives.tools.bench.report import size_text

NODES, LOCAL = 4, 2
KIB, MIB = 1 << 10, 1 << 20
SLOW, FAST = 200, 1000  # Mbit/s
LEADERS = Tuning().leader_bytes  # the largest sum that leaders alone carry, see docs
SIZES = (KIB, 8 * KIB, 64 * KIB, LEADERS, LEADERS + 4 * KIB, MIB, 8 * MIB)
FAST_SIZES = (MIB, 32 * MIB)
LARGE, HUGE = 8 * MIB, 32 * MIB
GLOO, OURS, BF16, INT8 = "gloo", "muster", "bf16", "int8"
BUDGET_S = 1.5
HUGE_ROUNDS = 3  # at 200 Mbit/s a sum of 32 MiB takes seconds
WIRE = 0.9


class Network(NamedTuple):
    """The rate of every link and the order of ranks over the nodes."""

    mbit_per_s: int
    order: str


def rows(rounds: int) -> Iterator[Row]:
    """Raises LinksError, RuntimeError."""
    reason = why_not()
    if reason:
        yield Row("between nodes", "ms", None, {}, (), reason)
        return
    least: list[tuple[float, str]] = []
    with links(NODES):
        for rate in (SLOW, FAST):
            shape(NODES, rate)
            for order in (BLOCK, CYCLIC):
                network = Network(rate, order)
                for result in _measured(network, rounds):
                    row = _row(network, result)
                    least.append(_beside_gloo(network, result, row.what))
                    yield row
    worst, where = min(least)
    yield Row(
        f"all_reduce over {NODES} nodes x {LOCAL}, all sizes, rates and rank orders above: least",
        "x", worst, {GLOO: 1.0}, (at_least(worst, 1, "x"),), f"at {where}", more_is_better=True,
    )  # fmt: skip


def wire_s(size_bytes: int, mbit_per_s: int) -> float:
    """The least that the links allow: 2 (M - 1) / M S bytes through each of them."""
    return 2 * (NODES - 1) / NODES * size_bytes * 8 / (mbit_per_s * 1e6 * PAYLOAD)


def gates_of(network: Network, size: int) -> tuple[Gate, ...]:
    """Section 9's gates, and that no size is slower than gloo's flat ring."""
    if network.order == CYCLIC:
        return (Gate(GLOO, OURS, 2),)
    if size <= 64 * KIB:
        return (Gate(GLOO, OURS, 2),)
    if size < LARGE:
        return (Gate(GLOO, OURS, 1), *([Gate(GLOO, BF16, 2.2)] if size == MIB else []))
    if size == LARGE:
        return (Gate(GLOO, OURS, 1.1), Gate(GLOO, BF16, 2.2), Gate(GLOO, INT8, 3))
    return (Gate(GLOO, OURS, 1.1),)


def _measured(network: Network, rounds: int) -> list[Result]:
    if network.mbit_per_s == FAST:
        return _settled(network, [_case(network, size) for size in FAST_SIZES], rounds)
    found = _settled(network, [_case(network, size) for size in SIZES], rounds)
    return found + _settled(network, [_case(network, HUGE)], min(rounds, HUGE_ROUNDS))


def _case(network: Network, size: int) -> Case:
    """With narrower wires where a gate asks for them."""
    asked = dict.fromkeys(gate.faster for gate in gates_of(network, size))
    return Case("all_reduce", "float32", size, (GLOO, *asked))


def _settled(network: Network, cases: Sequence[Case], rounds: int) -> list[Result]:
    def measured(chosen: Sequence[Case]) -> list[Result]:
        return _run(network, chosen, rounds)

    return settled(
        measured(cases), lambda each: gates_of(network, each.case.size_bytes), measured, 1
    )


def _row(network: Network, result: Result) -> Row:
    size = result.case.size_bytes
    wire = wire_s(size, network.mbit_per_s)
    share = wire / result.series[OURS].median
    full = network.mbit_per_s == SLOW and size >= LARGE
    name = f"{size_text(size)}, {NODES} nodes x {LOCAL}, {network.mbit_per_s} Mbit/s"
    return judged(
        result, OURS, gates_of(network, size), f"all_reduce {name}, {network.order}", "ms",
        [Bound(f"{WIRE * 100:.0f} % of the wire", share >= WIRE)] if full else [],
        f"wire {wire * 1e3:.1f} ms: {share * 100:.0f} %",
    )  # fmt: skip


def _beside_gloo(network: Network, result: Result, what: str) -> tuple[float, str]:
    found = ratio(result, Gate(GLOO, OURS, 1))
    assert found is not None
    return found.middle, what


def _run(network: Network, cases: Sequence[Case], rounds: int) -> list[Result]:
    return run(Spec(tuple(cases), rounds, BUDGET_S), placed(NODES, LOCAL, network.order))
