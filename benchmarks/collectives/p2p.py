"""Rows of sends and receives: one way, ping-pong, both ways, while the sender computes, and many
pairs at once; within a node beside gloo and Open MPI, between two nodes on links of no given rate
beside gloo (mpirun does not reach into namespaces)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.collectives.gates import Gate, judged, settled
from benchmarks.collectives.links import links, placed, unpaced, why_not
from benchmarks.collectives.nodes_job import run_ranks
from benchmarks.table import Bound, Row, under
from muster_collectives.tools.bench.cases import (
    GLOO,
    MPI,
    OURS,
    Case,
    Result,
    Spec,
    decode_result,
    encode_spec,
)
from muster_collectives.tools.bench.launch import find_mpirun, start
from muster_collectives.tools.bench.report import size_text

KIB, MIB = 1 << 10, 1 << 20
WITHIN = (KIB, 64 * KIB, MIB, 16 * MIB, 32 * MIB, 256 * MIB)
BETWEEN = (KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 64 * MIB)
WAYS = ("one_way", "ping_pong", "pairs")
AWAY = ("matmul", "python")  # what the sender does meanwhile
AWAY_BYTES, AWAY_CALLS, AWAY_MS = 16 * MIB, 50, 8.0
CROWD, CROWD_SIZES = 4, (64 * KIB, MIB)
SMALL = 64 * KIB  # up to here 1.5 times gloo is asked for
BUDGET_S, JOB_S = 0.15, 600.0
_WORDS = {"one_way": "one way", "ping_pong": "there and back", "pairs": "all pairs at once",
          "matmul": "sender in torch's matmul", "python": "sender in pure Python"}  # fmt: skip

# of sends and receives at once: how many times faster than gloo
_BOTH_WAYS = {KIB: 5.0, MIB: 5.0, 32 * MIB: 2.8}
Measured = Callable[[Sequence[Case], int], list[Result]]
Gates = Callable[[Result], tuple[Gate, ...]]


def rows(rounds: int) -> Iterator[Row]:
    """Raises RunError, RuntimeError, LinksError."""
    mpirun = find_mpirun()[0]
    names = (OURS, GLOO, MPI) if mpirun else (OURS, GLOO)
    yield from _rows(partial(_within, 2, mpirun), WITHIN, names, rounds, "a node", _inside)
    crowd = [Case("pairs", "uint8", size, names) for size in CROWD_SIZES]
    for result in _settled(partial(_within, CROWD, mpirun), crowd, rounds, gates_of):
        yield _row(result, f"{CROWD} ranks of a node", gates_of)
    reason = why_not()
    if reason:
        yield Row("sends and receives between nodes", "us", None, {}, (), reason)
        return
    with links(2):
        unpaced(2)
        yield from _rows(_between, BETWEEN, (OURS, GLOO), rounds, "2 nodes", gates_of)


def gates_of(result: Result) -> tuple[Gate, ...]:
    """Never slower than gloo, and faster where the way there is what counts."""
    return (Gate(GLOO, OURS, 1.5 if result.case.size_bytes <= SMALL else 1),)


def _inside(result: Result) -> tuple[Gate, ...]:
    """Of two ranks of a node."""
    case = result.case
    if case.verb != "pairs" or case.size_bytes not in _BOTH_WAYS:
        return gates_of(result)
    mpi = (Gate(MPI, OURS, 1.1),) if MPI in case.names and case.size_bytes >= MIB else ()
    return (Gate(GLOO, OURS, _BOTH_WAYS[case.size_bytes]), *mpi)


def _rows(
    run: Measured, sizes: Sequence[int], names: tuple[str, ...], rounds: int, where: str,
    gates: Gates,
) -> Iterator[Row]:  # fmt: skip
    cases = [Case(way, "uint8", size, names) for way in WAYS for size in sizes]
    for result in _settled(run, cases, rounds, gates):
        yield _row(result, where, gates)
    for result in run([Case(each, "uint8", AWAY_BYTES, names) for each in AWAY], AWAY_CALLS):
        yield _away(result, where)


def _settled(run: Measured, cases: Sequence[Case], rounds: int, gates: Gates) -> list[Result]:
    return settled(run(cases, rounds), gates, lambda chosen: run(chosen, rounds), 1)


def _row(result: Result, where: str, gates: Gates) -> Row:
    case = result.case
    return judged(
        result, OURS, gates(result), f"{_WORDS[case.verb]} {size_text(case.size_bytes)}, {where}"
    )


def _away(result: Result, where: str) -> Row:
    """Until the receiver has the message; a rank that waits may be any time late, so the bound is
    for nearly all of them."""
    late_ms = sorted(result.series[OURS].seconds)[int(AWAY_CALLS * 0.95)] * 1e3
    within: list[Bound] = [under(late_ms, AWAY_MS, "ms")] if where == "a node" else []
    name = f"{_WORDS[result.case.verb]}, {size_text(AWAY_BYTES)}, {where}"
    return judged(result, OURS, (), name, "ms", within, f"95 % within {late_ms:.1f} ms")


def _spec(folder: Path, cases: Sequence[Case], rounds: int) -> tuple[Path, Path]:
    """Single calls where each of them counts."""
    budget_s = 0.0 if rounds == AWAY_CALLS else BUDGET_S
    path, output = folder / "spec.json", folder / "results.jsonl"
    path.write_text(json.dumps(encode_spec(Spec(tuple(cases), rounds, budget_s))))
    return path, output


def _results(output: Path) -> list[Result]:
    return [decode_result(json.loads(line)) for line in output.read_text().splitlines()]


def _within(size: int, mpirun: str, cases: Sequence[Case], rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as name:
        path, output = _spec(Path(name), cases, rounds)
        argv = ["-m", "benchmarks.collectives.p2p_rank", str(path), str(output)]
        start(argv, size, Path(name), mpirun, JOB_S)
        return _results(output)


def _between(cases: Sequence[Case], rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as name:
        path, output = _spec(Path(name), cases, rounds)
        argv = ["-m", "benchmarks.collectives.p2p_rank", str(path), str(output)]
        run_ranks(placed(2, 1), argv)
        return _results(output)
