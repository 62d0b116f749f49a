"""One rank of the measuring, rank 0 writes:
`python -m muster_collectives.tools.autotune.rank OUTPUT ROUNDS BUDGET_S LARGE_BYTES`.

The same calls in groups whose sizes differ, in turns, so that a busy machine slows all alike.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Callable, Mapping
from ctypes import addressof, c_char
from dataclasses import dataclass, replace

from muster_collectives.core import Communicator, DType, Op, Tuning, Verb, connect, init
from muster_collectives.runtime.settings import current
from muster_collectives.tools.autotune.choose import crossover, fastest, threshold
from muster_collectives.tools.bench.measure import measure
from muster_collectives.tools.bench.team import Team

KIB, MIB = 1 << 10, 1 << 20
ONE_SHOT_SIZES = tuple(KIB << step for step in range(2, 9))  # 4 KiB to 256 KiB of each rank
CHUNKS = tuple(64 * KIB << step for step in range(6))  # 64 KiB to 2 MiB
DIRECT_SIZES = tuple(4 * KIB << step for step in range(9))  # 4 KiB to 1 MiB
LARGE_BYTES, LEAST_LARGE_BYTES = 32 * MIB, 1 * MIB
NEVER_BYTES = 1 << 62
ROUNDS, BUDGET_S = 7, 0.15
LIMIT_S = 120.0


@dataclass(frozen=True)
class Bench:
    """This rank's memory and how it makes groups that differ in their sizes."""

    team: Team
    address: int
    base: Tuning
    rounds: int
    budget_s: float
    large_bytes: int

    def group(self, name: str, **sizes: int) -> Communicator:
        """Collective."""
        world = self.team.core
        assert world.store is not None, "init gives a world its store"
        return connect(
            world.store, world.rank, world.size, name=f"tune-{name}", timeout_s=LIMIT_S,
            tuning=replace(self.base, **sizes),  # type: ignore[arg-type]
        )  # fmt: skip

    def medians(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        series = measure(self.team, calls, self.rounds, self.budget_s)
        return {name: each.median for name, each in series.items()}


def main(output: str, rounds: int, budget_s: float, large_bytes: int) -> None:
    world = init(timeout_s=LIMIT_S)
    memory = mmap.mmap(-1, max(large_bytes, ONE_SHOT_SIZES[-1]))
    place = c_char.from_buffer(memory)
    base = current().tuning
    bench = Bench(Team(world), addressof(place), base, rounds, budget_s, large_bytes)
    found = {
        "one_shot_bytes": one_shot(bench),
        **chunk(bench),
        "direct_bytes": direct(bench),
    }
    if world.rank == 0:
        with open(output, "w", encoding="utf-8") as file:
            json.dump(found, file)
    del place
    memory.close()
    world.close()


def one_shot(bench: Bench) -> int:
    """Ranks x bytes up to which every rank reads all."""
    size = bench.team.size
    slot = max(bench.base.slot_bytes, ONE_SHOT_SIZES[-1])
    groups = {
        "one": bench.group("one-shot", slot_bytes=slot, one_shot_bytes=ONE_SHOT_SIZES[-1] * size),
        "two": bench.group("staged", slot_bytes=slot, one_shot_bytes=0),
    }
    times: dict[str, dict[int, float]] = {"one": {}, "two": {}}
    for bytes_ in ONE_SHOT_SIZES:
        calls = {name: _sum(comm, bench.address, bytes_) for name, comm in groups.items()}
        for name, median in bench.medians(calls).items():
            times[name][bytes_] = median
    for comm in groups.values():
        comm.close()
    return crossover(times["one"], times["two"]) * size


def chunk(bench: Bench) -> dict[str, int]:
    """The piece in which a large sum goes through the slots."""
    groups = {
        size: bench.group(f"chunk-{size}", slot_bytes=size, chunk_bytes=size)
        for size in CHUNKS
        if size >= 64 * bench.team.size
    }
    calls = {str(s): _sum(comm, bench.address, bench.large_bytes) for s, comm in groups.items()}
    medians = bench.medians(calls)
    for comm in groups.values():
        comm.close()
    best = fastest({int(name): each for name, each in medians.items()}, bench.base.chunk_bytes)
    return {"chunk_bytes": best, "slot_bytes": max(best, bench.base.slot_bytes)}


def direct(bench: Bench) -> int:
    """From where registered memory is summed in place."""
    groups = {
        "staged": bench.group("apart", direct_bytes=NEVER_BYTES),
        "direct": bench.group("in-place", direct_bytes=0),
    }
    regions = {name: comm.allocate(DIRECT_SIZES[-1]) for name, comm in groups.items()}
    times: dict[str, dict[int, float]] = {"staged": {}, "direct": {}}
    for bytes_ in DIRECT_SIZES:
        calls = {n: _sum(comm, regions[n].address, bytes_) for n, comm in groups.items()}
        for name, median in bench.medians(calls).items():
            times[name][bytes_] = median
    for name, comm in groups.items():
        regions[name].release()
        comm.close()
    return threshold(times["staged"], times["direct"], NEVER_BYTES)


def _sum(comm: Communicator, address: int, bytes_: int) -> Callable[[], object]:
    return lambda: comm.run(
        Verb.ALL_REDUCE, source=address, target=address, count=bytes_ // 4, dtype=DType.F32,
        op=Op.SUM, timeout_s=LIMIT_S,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
