"""A rank that checks collectives: `ops_worker WHAT [STEPS] [SEED]`; `main` has the words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count as numbers

import numpy as np

from muster_collectives.core import Communicator, DType, Op, Verb
from tests.collectives.core.checks import LIMIT_S, Checker, WrongError
from tests.collectives.core.reference import MEMORY, Array, ops_of
from tests.collectives.support.meeting import Meeting

LARGE_BYTES = 9 << 20  # beyond NONTEMPORAL_BYTES of csrc/kernels/dispatch.c
CROWDED_COUNT = 80_007  # floats: more than 4 MiB / 16 ranks
CHUNK_BYTES = 4096  # what the test sets COLLECTIVES_CHUNK_BYTES to


def main(what: str, steps: int = 0, seed: int = 1) -> None:
    meeting = Meeting()
    comm = meeting.world()
    words = {
        "matrix": lambda: matrix(comm, seed, whole=True),
        "few": lambda: matrix(comm, seed, whole=False),
        "small": lambda: small(comm, steps),
        "direct": lambda: direct(comm),
        "large": lambda: large(comm),
        "crowded": lambda: crowded(comm, seed),
    }[what]()
    paths = {path.name.lower(): count for path, count in comm.stats().paths.items()}
    meeting.say(paths=paths, **words)
    comm.close()


def sizes_of(dtype: DType) -> tuple[int, ...]:
    """Elements: none, one, a vector's edges, the chunk's, more than three chunks."""
    chunk = CHUNK_BYTES // np.dtype(MEMORY[dtype]).itemsize
    return (0, 1, 15, 16, 17, chunk - 1, chunk, chunk + 1, 3 * chunk + 7)


def matrix(comm: Communicator, seed: int, whole: bool) -> dict[str, int]:
    """Every type and operation at every size; the moving verbs at fewer, they know bytes only.
    Not `whole`: at two sizes."""
    check, salts = Checker(comm, seed), numbers(1)
    for dtype in DType:
        sizes = sizes_of(dtype) if whole else sizes_of(dtype)[4:8:3]
        few = (0, 17, sizes[-2])
        for op in ops_of(dtype):
            for size in sizes:
                check.all_reduce(dtype, op, size, next(salts))
                check.reduce(dtype, op, size, next(salts))
                check.reduce_scatter(dtype, op, size, next(salts))
        for size in sizes if dtype in (DType.F32, DType.U8) else few:
            for verb in (check.broadcast, check.all_gather, check.gather, check.scatter,
                         check.all_to_all, check.all_to_all_uneven):  # fmt: skip
                verb(dtype, size, next(salts))
        check.barrier()
    return {"calls": check.calls, "same": check.same, "own": check.own}


def crowded(comm: Communicator, seed: int) -> dict[str, int]:
    """Every verb in more than one of the epochs that 16 ranks and more have: theirs are short, so
    that the slots of all stay in the cache."""
    check, salts = Checker(comm, seed), numbers(1)
    for _ in range(2):  # an odd and an even salt of each verb
        for sums in (check.all_reduce, check.reduce):
            sums(DType.F32, Op.SUM, CROWDED_COUNT, next(salts))
        check.reduce_scatter(DType.F32, Op.SUM, CROWDED_COUNT // 16, next(salts))
        for whole in (check.broadcast, check.all_gather, check.gather):
            whole(DType.F32, CROWDED_COUNT, next(salts))
        for part in (check.scatter, check.all_to_all, check.all_to_all_uneven):
            part(DType.F32, CROWDED_COUNT // 16, next(salts))
        next(salts)
    return {"calls": check.calls, "same": check.same, "own": check.own}


def small(comm: Communicator, steps: int) -> dict[str, int]:
    """One 8-byte sum after the other, each checked: no round may take another round's value."""
    value = np.zeros(1, np.int64)
    address = int(value.ctypes.data)
    ranks, sum_of_ranks = comm.size, comm.size * (comm.size - 1) // 2
    for step in range(steps):
        value[0] = step + comm.rank
        comm.run(
            Verb.ALL_REDUCE, source=address, target=address, count=1, dtype=DType.I64,
            op=Op.SUM, timeout_s=LIMIT_S,
        )  # fmt: skip
        if value[0] != ranks * step + sum_of_ranks:
            raise WrongError(f"call {step}: {value[0]}, not {ranks * step + sum_of_ranks}")
    return {"calls": steps}


def direct(comm: Communicator) -> dict[str, int]:
    """The algorithms on registered memory, and the same values from private memory: same bits."""
    count = 3 * CHUNK_BYTES + 7
    whole = (count * comm.size * 4 + 4096) & ~4095
    region, other = comm.allocate(whole), comm.allocate(whole)
    chance = np.random.default_rng(comm.rank)
    mine = chance.standard_normal(count * comm.size).astype(np.float32)
    for verb, given, got in (
        (Verb.ALL_REDUCE, count, count),
        (Verb.ALL_GATHER, count, count * comm.size),
        (Verb.REDUCE_SCATTER, count * comm.size, count),
    ):
        private, result = mine[:given].copy(), np.zeros(got, np.float32)
        _float_sum(comm, verb, int(private.ctypes.data), int(result.ctypes.data), count)
        source = np.frombuffer(region.view, np.float32, given)
        target = np.frombuffer(other.view, np.float32, got)
        source[:] = mine[:given]
        in_place = verb == Verb.ALL_REDUCE
        _float_sum(comm, verb, region.address, region.address if in_place else other.address, count)
        found = source if in_place else target
        if found.tobytes() != result.tobytes():
            raise WrongError(f"{verb.name}: registered memory gives other bits")
        del source, target, found  # a region is not released while something looks into it
    _over_its_input(comm, region.address, np.frombuffer(region.view, np.float32, count * comm.size))
    region.release()
    other.release()
    return {}


def _over_its_input(comm: Communicator, address: int, memory: Array) -> None:
    """The result of a reduce-scatter at the front of its input, where others still read."""
    count = memory.size // comm.size
    for turn in range(20):
        memory[:] = np.repeat(np.arange(comm.size), count) + comm.rank * turn
        _float_sum(comm, Verb.REDUCE_SCATTER, address, address, count)
        due = comm.size * comm.rank + turn * comm.size * (comm.size - 1) / 2
        if not (memory[:count] == due).all():
            raise WrongError(f"reduce-scatter onto its own input: {memory[:count]}, not {due}")


def large(comm: Communicator) -> dict[str, int]:
    """Results that are written past the cache (csrc/kernels), at odd addresses and lengths."""
    size, rank, each = comm.size, comm.rank, LARGE_BYTES // comm.size + 13
    given = [
        np.random.default_rng(one).integers(0, 256, each * size, np.uint8) for one in range(size)
    ]
    mine = given[rank]
    got = np.zeros(each * size + 1, np.uint8)[1:]

    def expect(what: str, parts: Sequence[Array], found: Array) -> None:
        if not np.array_equal(np.concatenate(parts), found):
            raise WrongError(f"{what} of {found.size} bytes is wrong")
        found[:] = 0

    comm.all_gather(got, mine[:each])
    expect("all_gather", [one[:each] for one in given], got)
    comm.gather(got if rank == 1 else None, mine[:each], 1)
    expect("gather", [one[:each] * (rank == 1) for one in given], got)
    comm.all_to_all(got, mine)
    expect("all_to_all", [one[rank * each : (rank + 1) * each] for one in given], got)
    comm.scatter(got[:each], mine if rank == 1 else None, 1)
    expect("scatter", [given[1][rank * each : (rank + 1) * each]], got[:each])
    got[:] = given[1] * (rank == 1)
    comm.broadcast(got, 1)
    expect("broadcast", [given[1]], got)
    for kind in (np.uint8, np.float32):  # whole numbers, so that sums of floats are exact
        inputs = [one.astype(kind) for one in given]
        part = np.zeros(each + 1, kind)[1:]
        comm.reduce_scatter(part, inputs[rank])
        own = slice(rank * each, (rank + 1) * each)
        expect("reduce_scatter", [sum((one[own] for one in inputs[1:]), inputs[0][own])], part)
    got[:] = mine
    comm.all_reduce(got)
    expect("all_reduce", [sum(given[1:], given[0])], got)
    return {}


def _float_sum(comm: Communicator, verb: Verb, source: int, target: int, count: int) -> None:
    comm.run(
        verb, source=source, target=target, count=count, dtype=DType.F32, op=Op.SUM,
        timeout_s=LIMIT_S,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
