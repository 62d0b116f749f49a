"""Rows between nodes: 4 network namespaces x 2 ranks on links of 200 Mbit/s, both rank orders."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.collectives_links import (
    PAYLOAD,
    address,
    interface,
    links,
    node,
    shape,
    why_not,
)
from benchmarks.table import Bound, Row
from muster_collectives.bench.cases import Result, decode_result
from muster_collectives.bench.report import size_text
from tests.support import ranks

NODES, LOCAL = 4, 2
MBIT_PER_S = 200
KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 8 * MIB)
LARGE = 8 * MIB
GLOO, OURS, BF16, INT8 = "gloo", "muster", "bf16", "int8"
JOB_S = 900.0
ORDERS = ("block", "cyclic")


def rows(rounds: int) -> Iterator[Row]:
    """Raises LinksError, RuntimeError."""
    reason = why_not()
    if reason:
        yield Row("between nodes", "us", None, {}, (), reason)
        return
    with links(NODES):
        shape(NODES, MBIT_PER_S)
        for order in ORDERS:
            for result in _run(order, max(3, rounds // 2)):
                yield _row(order, result)


def wire_s(size_bytes: int) -> float:
    """The least that the links allow: 2 (M - 1) / M S bytes through each of them."""
    return 2 * (NODES - 1) / NODES * size_bytes * 8 / (MBIT_PER_S * 1e6 * PAYLOAD)


def _row(order: str, result: Result) -> Row:
    size = result.case.size_bytes
    best, wire = result.series[OURS].best, wire_s(size)
    bounds, words = [], []
    for name, least in _least(order, size).items():
        times = result.times(GLOO, name)
        assert times is not None
        bounds.append(Bound(f"{name} {least:g}x faster than gloo", max(times) >= least))
        words.append(f"{name} {times[0]:.2f}x median, {times[1]:.2f}x best")
    if size == LARGE:
        bounds.append(Bound("90 % of the wire", wire / best >= 0.9))
    words.append(f"wire {wire * 1e3:.1f} ms: {wire / best * 100:.0f} %")
    peers = {name: each.median * 1e3 for name, each in result.series.items() if name != OURS}
    return Row(
        f"all_reduce {size_text(size)}, {NODES} nodes x {LOCAL}, {MBIT_PER_S} Mbit/s, {order}",
        "ms", result.series[OURS].median * 1e3, peers, tuple(bounds), "; ".join(words),
    )  # fmt: skip


def _least(order: str, size: int) -> dict[str, float]:
    """Section 9's gates for one size and rank order, by contender."""
    if order == "cyclic":
        return {OURS: 2.0}
    if size <= 64 * KIB:
        return {OURS: 2.0}
    if size < LARGE:
        return {OURS: 1.0, BF16: 2.2}
    return {OURS: 1.1, BF16: 2.2, INT8: 3.0}


def _run(order: str, rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as folder:
        output = Path(folder) / "results.jsonl"
        sizes = ",".join(map(str, SIZES))
        argv = ["-m", "benchmarks.collectives_nodes_rank", sizes, str(rounds), str(output)]
        ended = ranks.run(NODES * LOCAL, argv, each_env=_environs(order), timeout_s=JOB_S)
        if any(each.code for each in ended):
            raise RuntimeError(ranks.shown(ended)[-3000:])
        return [decode_result(json.loads(line)) for line in output.read_text().splitlines()]


def _environs(order: str) -> Sequence[dict[str, str]]:
    """Ranks node after node, or in turns over the nodes."""
    places = [rank // LOCAL if order == "block" else rank % NODES for rank in range(NODES * LOCAL)]
    return [
        {
            "BENCH_NAMESPACE": node(place), "MASTER_ADDR": address(places[0]),
            "GLOO_SOCKET_IFNAME": interface(place), "COLLECTIVES_INTERFACE": interface(place),
            "COLLECTIVES_NODE": node(place),  # they share a kernel, and could find that out
        }
        for place in places
    ]  # fmt: skip
