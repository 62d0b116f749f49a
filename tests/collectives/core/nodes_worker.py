"""A rank of several nodes: `nodes_worker edges|sums|large|wire [SEED]`."""

from __future__ import annotations

import sys
import zlib
from itertools import count as numbers
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster_collectives.core import Communicator, DType, Op, Verb
from tests.collectives.core.checks import LIMIT_S, Checker, WrongError
from tests.collectives.core.reference import MEMORY
from tests.collectives.support.meeting import Meeting

Floats: TypeAlias = "NDArray[np.float32]"
SEGMENT_BYTES = 4096  # what the test sets COLLECTIVES_SEGMENT_BYTES to
LEADER_BYTES = 2048
PIECE_BYTES = 8 * SEGMENT_BYTES  # of a large sum: no message may be very small
WIRE_COUNT = 40_003
LARGE_COUNT = 3 << 20
ROUND = {"fp16": 2.0**-11, "bf16": 2.0**-8}
REPEATS = 24


def main(what: str, seed: int = 1) -> None:
    meeting = Meeting()
    comm = meeting.world()
    words = {
        "edges": lambda: edges(comm, seed),
        "sums": lambda: sums(comm, seed),
        "large": lambda: large(comm),
        "wire": lambda: wire(comm, seed),
    }[what]()
    paths = {path.name.lower(): count for path, count in comm.stats().paths.items()}
    meeting.say(paths=paths, nodes=list(comm.nodes), **words)
    comm.close()


def edges(comm: Communicator, seed: int) -> dict[str, Any]:
    """All verbs at no element, one, odd numbers, and on both sides of every border of sizes."""
    check, salts = Checker(comm, seed), numbers(1)
    for dtype, op in (
        (DType.F32, Op.SUM), (DType.BF16, Op.AVG), (DType.I64, Op.MAX), (DType.U8, Op.BXOR),
    ):  # fmt: skip
        size = np.dtype(MEMORY[dtype]).itemsize
        borders = (LEADER_BYTES // size, PIECE_BYTES // size)
        near = [border + step for border in borders for step in (-1, 0, 1)]
        for count in (0, 1, 17, *near, 5 * PIECE_BYTES // size + 13):
            check.all_reduce(dtype, op, count, next(salts))
            check.reduce(dtype, op, count, next(salts))
        # of these `count` is one rank's part, so their borders are elsewhere
        parts = (LEADER_BYTES // comm.size // size, 4096 // size, SEGMENT_BYTES // size)
        near = [border + step for border in parts for step in (0, 1)]
        for count in (0, 1, 17, *near, 3 * SEGMENT_BYTES // size + 13):
            check.reduce_scatter(dtype, op, count, next(salts))
            for verb in (check.all_gather, check.gather, check.scatter, check.all_to_all,
                         check.all_to_all_uneven, check.broadcast):  # fmt: skip
                verb(dtype, count, next(salts))
        check.broadcast(dtype, 3 * PIECE_BYTES // size + 13, next(salts))
        check.barrier()
    roots(check, next(salts))
    return {"calls": check.calls, "same": check.same, "own": check.own}


def sums(comm: Communicator, seed: int) -> dict[str, Any]:
    """Of every kind of type: parts that are empty or uneven, and more than the size up to which few
    nodes sum in rounds; every kind of root."""
    check, salts = Checker(comm, seed), numbers(1)
    for dtype, op in (
        (DType.F32, Op.SUM), (DType.F32, Op.AVG), (DType.F64, Op.AVG), (DType.I64, Op.MAX),
        (DType.U8, Op.BXOR), (DType.BF16, Op.SUM),
    ):  # fmt: skip
        size = np.dtype(MEMORY[dtype]).itemsize
        for size_bytes in (32, LEADER_BYTES, 2 * LEADER_BYTES + 8, 5 * PIECE_BYTES + 104):
            check.all_reduce(dtype, op, size_bytes // size, next(salts))
            check.reduce(dtype, op, size_bytes // size, next(salts))
    pattern = (np.arange((1 << 18) + 7) % 1009).astype(np.float32)
    out: Floats = np.zeros_like(pattern)
    _run(comm, Verb.ALL_REDUCE, pattern + np.float32(comm.rank), out, len(out))
    _same("all_reduce", out, pattern * comm.size + comm.size * (comm.size - 1) // 2)
    roots(check, next(salts))
    return {"calls": check.calls, "same": check.same, "own": check.own}


def roots(check: Checker, salt: int) -> None:
    """Every rank is a root once, of small and of large data (the salt says which)."""
    for step in range(check.size):
        for count in (3, 10_007):
            check.reduce(DType.F32, Op.SUM, count, salt + step)
            check.broadcast(DType.F32, count, salt + step)
            check.gather(DType.F32, count, salt + step)
            check.scatter(DType.F32, count, salt + step)


def large(comm: Communicator) -> dict[str, Any]:
    """More than sockets hold, in many pieces: legs in and between nodes wait for each other."""
    part = LARGE_COUNT // comm.size
    count = part * comm.size
    pattern = (np.arange(count) % 1009).astype(np.float32)
    ideal = pattern * comm.size + comm.size * (comm.size - 1) // 2
    mine = slice(comm.rank * part, (comm.rank + 1) * part)
    for root in (1, comm.size - 1):
        data = pattern + np.float32(comm.rank)
        out: Floats = np.zeros(count, np.float32)
        _run(comm, Verb.ALL_REDUCE, data, out, count)
        _same("all_reduce", out, ideal)
        out[:] = 0
        _run(comm, Verb.REDUCE, data, out, count, root=root)
        _same("reduce", out, ideal if comm.rank == root else np.zeros(count))
        _run(comm, Verb.BROADCAST, data, data, count, root=root)
        _same("broadcast", data, pattern + root)
        data = pattern + np.float32(comm.rank)
        _run(comm, Verb.ALL_GATHER, data[mine].copy(), out, part)
        _same("all_gather", out, pattern + np.repeat(np.arange(comm.size), part))
        _run(comm, Verb.ALL_TO_ALL, data, out, part)
        everyone = np.repeat(np.arange(comm.size), part)
        _same("all_to_all", out, np.tile(pattern[mine], comm.size) + everyone)
        _run(comm, Verb.REDUCE_SCATTER, data, out, part)
        _same("reduce_scatter", out[:part], ideal[mine])
    return {"calls": 12}


def _same(name: str, found: Floats, ideal: NDArray[Any]) -> None:
    bad = np.flatnonzero(found != ideal)
    if len(bad):
        at = int(bad[0])
        raise WrongError(f"large {name}: {len(bad)} wrong, at {at} {found[at]} for {ideal[at]}")


def wire(comm: Communicator, seed: int) -> dict[str, Any]:
    """What compressed sums are off by, as a part of what they may be off by (at most 1)."""
    given = np.random.default_rng([seed, comm.rank]).standard_normal(WIRE_COUNT, np.float32)
    whole: Floats = np.zeros((comm.size, WIRE_COUNT), np.float32)
    _run(comm, Verb.ALL_GATHER, given, whole, WIRE_COUNT)
    bound = {name: _bound(comm, whole, name) for name in ("fp16", "bf16", "int8")}
    ideal = whole.sum(axis=0, dtype=np.float64)
    found: dict[str, Floats] = {}
    for name, op in (("sum", Op.SUM), ("avg", Op.AVG)):
        out: Floats = np.zeros(WIRE_COUNT, np.float32)
        _run(comm, Verb.ALL_REDUCE, given, out, WIRE_COUNT, op)
        found[name] = out if op == Op.SUM else out * np.float32(comm.size)
    part = WIRE_COUNT // comm.size
    mine = slice(comm.rank * part, (comm.rank + 1) * part)
    scattered: Floats = np.zeros(part, np.float32)
    _run(comm, Verb.REDUCE_SCATTER, given[: part * comm.size].copy(), scattered, part)
    errors = {name: np.abs(values - ideal) for name, values in found.items()}
    off = {
        kind: max(float((error / room).max()) for error in errors.values())
        for kind, room in bound.items()
    }
    scatter_off = {
        kind: float((np.abs(scattered - ideal[mine]) / room[mine]).max())
        for kind, room in bound.items()
    }
    _exact_stays_exact(comm)
    repeated = _repeated(comm, given, ideal)
    digest = hash_of([*found.values(), repeated["last"]])
    del repeated["last"]
    return {"off": off, "scatter_off": scatter_off, "digest": digest, **repeated}


def hash_of(arrays: list[Floats]) -> int:
    digest = 0
    for array in arrays:
        digest = zlib.crc32(array.tobytes(), digest)
    return digest


def _bound(comm: Communicator, whole: Floats, name: str) -> NDArray[np.float64]:
    """One rounding of every node's sum, one of the whole, and fp32's own."""
    nodes = [
        whole[[rank for rank in range(comm.size) if comm.nodes[rank] == node]].sum(0, np.float64)
        for node in sorted(set(comm.nodes))
    ]
    everything = [*nodes, np.sum(nodes, axis=0)]
    own = sum(np.abs(each) for each in everything) * 2.0**-20
    if name == "int8":  # a block's largest value is 127 steps; half a step each
        return np.asarray(own + sum(float(np.abs(each).max()) for each in everything) / 254 * 1.1)
    # the sum that is rounded last is already off by the first roundings
    rounded = sum(np.abs(each) for each in everything) * ROUND[name] * 1.1 + 2.0**-14 * ROUND[name]
    return np.asarray(own + rounded)


def _exact_stays_exact(comm: Communicator) -> None:
    """Only fp32 sums are compressed."""
    check = Checker(comm, 5)
    for dtype, op in ((DType.F32, Op.MAX), (DType.I32, Op.SUM), (DType.F64, Op.SUM)):
        check.all_reduce(dtype, op, 20_001, 3)
        check.reduce_scatter(dtype, op, 5_001, 4)
    check.all_gather(DType.F32, 5_001, 5)
    check.broadcast(DType.F32, 50_001, 6)


def _repeated(comm: Communicator, given: Floats, ideal: NDArray[np.float64]) -> dict[str, Any]:
    """How far a sum, and the mean of many sums of the same values, are from the ideal."""
    total = np.zeros(WIRE_COUNT, np.float64)
    out: Floats = np.zeros(WIRE_COUNT, np.float32)
    for _ in range(REPEATS):
        _run(comm, Verb.ALL_REDUCE, given, out, WIRE_COUNT)
        total += out
    single = float(np.abs(out - ideal).mean())
    return {"single": single, "mean": float(np.abs(total / REPEATS - ideal).mean()), "last": out}


def _run(
    comm: Communicator, verb: Verb, given: Floats, out: Floats, count: int, op: Op = Op.SUM,
    root: int = 0,
) -> None:  # fmt: skip
    comm.run(
        verb, source=int(given.ctypes.data), target=int(out.ctypes.data), count=count,
        dtype=DType.F32, op=op, root=root, timeout_s=LIMIT_S,
    )  # fmt: skip
    if not np.isfinite(out).all():
        raise WrongError(f"{verb.name}: not finite")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
