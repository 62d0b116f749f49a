"""Real runs on network namespaces, and the constants that explain those of two nodes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.collectives.links import PAYLOAD, links, placed, shape
from benchmarks.simulated.network import Host, Link, seconds
from benchmarks.simulated.schedules import SEGMENT_BYTES, Shape, ours
from tests.collectives.support import ranks

_JOB_S = 200.0
_QUEUE_MS = 200  # nothing is lost: the model knows no loss


class Run(NamedTuple):
    """A real all-reduce: of `size_bytes` on one rank of each node; the least and the median seconds
    of a call over the batches, and the bytes that rank 0 sent in one."""

    nodes: int
    mbit_per_s: int  # 0: links are not slowed down
    segment_bytes: int
    size_bytes: int
    least_s: float
    median_s: float
    sent_bytes: int


def runs(
    nodes: int, mbit_per_s: int, sizes: Sequence[int], verb: str = "ALL_REDUCE",
    segment_bytes: int = SEGMENT_BYTES,
) -> list[Run]:  # fmt: skip
    """Raises LinksError, RuntimeError."""
    with links(nodes):
        if mbit_per_s:
            shape(nodes, mbit_per_s, _QUEUE_MS, burst_kb=32)
        size = {"COLLECTIVES_SEGMENT_BYTES": str(segment_bytes)}
        given = [{**each, **size} for each in placed(nodes, 1)]
        return of_ranks(given, sizes, verb, mbit_per_s=mbit_per_s, segment_bytes=segment_bytes)


def least(turns: int, measured: Callable[[], list[Run]]) -> list[Run]:
    """The quickest of each of the same runs in some turns: others use the machine as well."""
    return [min(same, key=lambda run: run.least_s)
            for same in zip(*(measured() for _ in range(turns)), strict=True)]  # fmt: skip


def of_ranks(
    environs: Sequence[Mapping[str, str]], sizes: Sequence[int], verb: str = "ALL_REDUCE",
    batches: int = 7, mbit_per_s: int = 0, segment_bytes: int = SEGMENT_BYTES,
) -> list[Run]:  # fmt: skip
    """A rank for each of `environs`, each a node. Raises RuntimeError with what they wrote."""
    argv = ["-m", "benchmarks.simulated.rank", verb, ",".join(map(str, sizes)), str(batches)]
    ended = ranks.run(len(environs), argv, each_env=environs, timeout_s=_JOB_S)
    if any(each.code for each in ended):
        raise RuntimeError(ranks.shown(ended)[-3000:])
    found = []
    for line in ended[0].output.splitlines():
        said = json.loads(line)
        taken = sorted(said["seconds"])
        found.append(
            Run(len(environs), mbit_per_s, segment_bytes, said["size_bytes"], taken[0],
                taken[len(taken) // 2], said["sent_bytes"])
        )  # fmt: skip
    return found


def link_of(run: Run, free_bytes_per_s: float) -> Link:
    """The link of a run; `free_bytes_per_s` of one that is not slowed down. Ranks share this
    machine's processors."""
    rate = run.mbit_per_s * 1e6 / 8 * PAYLOAD if run.mbit_per_s else free_bytes_per_s
    return Link(rate, max(1.0, run.nodes / (os.cpu_count() or 1)))


def predicted(run: Run, host: Host) -> float:
    shape = Shape(run.nodes, segment_bytes=run.segment_bytes)
    # what is not slowed down is memory: byte_s has it all
    return seconds(ours(shape, run.size_bytes), host, link_of(run, 1e12))


def message_of(stream: Run) -> float:
    """Seconds of a message, of a broadcast to one other node in many pieces: its sender and its
    receiver work at the same time, each on a processor."""
    return stream.least_s / (stream.size_bytes / stream.segment_bytes)


def fitted(of: Sequence[Run], stream: Run, in_node: float) -> Host:
    """The constants that leave the least squares of relative errors, where `stream` tells what a
    message of its size costs, and `in_node` what a byte costs within a node."""

    def host_of(values: Sequence[float]) -> Host:
        latency, byte = values
        message = max(message_of(stream) - byte * stream.segment_bytes, 0)
        return Host(latency, message, byte, in_node)

    def off(values: Sequence[float]) -> float:
        host = host_of(values)
        return sum(math.log(predicted(run, host) / run.least_s) ** 2 for run in of)

    return host_of(_minimum(off, [30e-6, 0.4e-9]))


def in_node_byte_s() -> float:
    """Of an all-reduce of two ranks of one node: what a sum within a node and its handing out cost
    each byte, of processors that read and write memory at this machine's speed."""
    size_bytes = 8 << 20
    (run,) = of_ranks([{"COLLECTIVES_NODE": "a"}] * 2, [size_bytes])
    return run.least_s / size_bytes


def _minimum(off: Callable[[Sequence[float]], float], start: list[float]) -> list[float]:
    """By turns in each value, in steps that become finer."""
    best, lowest = start, off(start)
    factor = 2.0
    while factor > 1.01:
        better = False
        for at in range(len(best)):
            for by in (factor, 1 / factor):
                tried = [*best[:at], best[at] * by, *best[at + 1 :]]
                found = off(tried)
                if found < lowest:
                    best, lowest, better = tried, found, True
        if not better:
            factor = factor**0.5
    return best
