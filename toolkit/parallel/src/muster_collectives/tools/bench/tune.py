"""`python -m muster_collectives.bench --tune`: finds the sizes that suit this machine.

The same calls in groups whose sizes differ, in turns, so that a busy machine slows all alike. One
rank of it: `python -m muster_collectives.tools.bench.tune OUTPUT ROUNDS BUDGET_S LARGE_BYTES`;
rank 0 writes what was found.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass, replace
from pathlib import Path

from muster_collectives.core import Communicator, DType, Verb, connect, init
from muster_collectives.runtime import machine, machine_file
from muster_collectives.runtime.flight import write_json
from muster_collectives.runtime.settings import current
from muster_collectives.runtime.tuning import encode
from muster_collectives.tools.bench.group import Team, measure
from muster_collectives.tools.bench.launch import start

KIB, MIB = 1 << 10, 1 << 20
ONE_SHOT_SIZES = tuple(KIB << step for step in range(2, 9))  # 4 KiB to 256 KiB of each rank
CHUNKS = tuple(64 * KIB << step for step in range(6))  # 64 KiB to 2 MiB
DIRECT_SIZES = tuple(4 * KIB << step for step in range(9))  # 4 KiB to 1 MiB
LEAST_LARGE_BYTES = 1 * MIB
NEVER_BYTES = 1 << 62
LIMIT_S = 120.0
MARGIN = 1.03  # what is not clearly better leaves things as they are


def tune(
    ranks: int, rounds: int, budget_s: float, large_bytes: int, limit_s: float, is_dry: bool
) -> None:
    """Measures on `ranks` processes of this machine, prints what was found, and writes the file
    that later groups read. Raises RunError, OSError."""
    with tempfile.TemporaryDirectory(prefix="mc-tune-") as name:
        output = Path(name) / "found.json"
        words = map(str, (output, rounds, budget_s, large_bytes))
        argv = ["-m", "muster_collectives.tools.bench.tune", *words]
        start(argv, ranks, Path(name), limit_s=limit_s)
        found: dict[str, int] = json.loads(output.read_text(encoding="utf-8"))
    before = encode(current().tuning)
    for key, value in found.items():
        print(f"{key:<16} {value:>20}  (was {before[key]})")
    path = machine_file.path_of(os.environ)
    if is_dry:
        print(f"nothing written; without --dry-run this goes to {path}")
        return
    write(path, found)
    print(f"written to {path}")


def write(path: str, found: Mapping[str, int]) -> None:
    """The sizes of this machine. Raises OSError."""
    write_json(path, {
        "version": machine_file.VERSION, "processors": machine.processors(),
        "machine": platform.machine(), "tuning": dict(found),
    })  # fmt: skip


# --- one rank


@dataclass(frozen=True)
class Tuner:
    """A rank that times sums in groups of different sizes. `address`: of `large_bytes` of its
    memory, and of the largest of ONE_SHOT_SIZES at least."""

    team: Team
    address: int
    rounds: int
    budget_s: float
    large_bytes: int

    def find(self) -> dict[str, int]:
        """Collective."""
        return {"one_shot_bytes": self._one_shot(), **self._chunk(), "direct_bytes": self._direct()}

    def _one_shot(self) -> int:
        """Ranks x bytes up to which every rank reads all."""
        ranks = self.team.size
        slot = max(current().tuning.slot_bytes, ONE_SHOT_SIZES[-1])
        ways = {
            "one-shot": {"slot_bytes": slot, "one_shot_bytes": ONE_SHOT_SIZES[-1] * ranks},
            "staged": {"slot_bytes": slot, "one_shot_bytes": 0},
        }
        times = self._times(ways, ONE_SHOT_SIZES)
        return crossover(times["one-shot"], times["staged"]) * ranks

    def _chunk(self) -> dict[str, int]:
        """The piece in which a large sum goes through the slots."""
        base = current().tuning
        ways = {
            f"chunk-{size}": {"slot_bytes": size, "chunk_bytes": size}
            for size in CHUNKS
            if size >= 64 * self.team.size
        }
        times = self._times(ways, (self.large_bytes,))
        seconds = {ways[name]["chunk_bytes"]: each[self.large_bytes]
                   for name, each in times.items()}  # fmt: skip
        best = fastest(seconds, base.chunk_bytes)
        return {"chunk_bytes": best, "slot_bytes": max(best, base.slot_bytes)}

    def _direct(self) -> int:
        """From where registered memory is summed in place."""
        ways = {"apart": {"direct_bytes": NEVER_BYTES}, "in-place": {"direct_bytes": 0}}
        times = self._times(ways, DIRECT_SIZES, is_registered=True)
        return threshold(times["apart"], times["in-place"], NEVER_BYTES)

    def _times(
        self,
        ways: Mapping[str, Mapping[str, int]],
        sizes: Sequence[int],
        is_registered: bool = False,
    ) -> dict[str, dict[int, float]]:
        """Seconds of a sum, by way and bytes. `ways`: the sizes of each one's group, by name."""
        groups = {name: self._group(name, way) for name, way in ways.items()}
        # the end of its group releases it
        regions = {name: group.allocate(sizes[-1]) for name, group in groups.items()
                   if is_registered}  # fmt: skip
        places = {name: regions[name].address if is_registered else self.address for name in ways}
        times: dict[str, dict[int, float]] = {name: {} for name in ways}
        for bytes_ in sizes:
            calls = {name: _sum(group, places[name], bytes_) for name, group in groups.items()}
            for name, series in measure(self.team, calls, self.rounds, self.budget_s).items():
                times[name][bytes_] = series.median
        for group in groups.values():
            group.close()
        return times

    def _group(self, name: str, way: Mapping[str, int]) -> Communicator:
        world = self.team.core
        assert world.store is not None, "init gives a world its store"
        return connect(
            world.store, world.rank, world.size, name=f"tune-{name}", timeout_s=LIMIT_S,
            tuning=replace(current().tuning, **way),  # type: ignore[arg-type]
        )  # fmt: skip


def main(output: str, rounds: int, budget_s: float, large_bytes: int) -> None:
    with init(timeout_s=LIMIT_S) as world:
        memory = mmap.mmap(-1, max(large_bytes, ONE_SHOT_SIZES[-1]))
        address = addressof(c_char.from_buffer(memory))
        found = Tuner(Team(world), address, rounds, budget_s, large_bytes).find()
        if world.rank == 0:
            Path(output).write_text(json.dumps(found), encoding="utf-8")


def _sum(comm: Communicator, address: int, bytes_: int) -> Callable[[], object]:
    return lambda: comm.run(
        Verb.ALL_REDUCE, source=address, target=address, count=bytes_ // 4, dtype=DType.F32,
        timeout_s=LIMIT_S,
    )  # fmt: skip


# --- from times to sizes (pure)


def crossover(small: Mapping[int, float], large: Mapping[int, float]) -> int:
    """The largest size up to which the algorithm `small` is not slower than `large`, and never was
    at a smaller one. Seconds by size in bytes; 0: it is slower at once."""
    found = 0
    for size in sorted(small):
        if small[size] > large[size] * MARGIN:
            break
        found = size
    return found


def threshold(small: Mapping[int, float], large: Mapping[int, float], never: int) -> int:
    """The smallest size from which `large` is clearly faster at every size; `never` without any."""
    found = never
    for size in sorted(small, reverse=True):
        if large[size] * MARGIN > small[size]:
            break
        found = size
    return found


def fastest(seconds: Mapping[int, float], default: int) -> int:
    """The size with the least time, where that is clearly less than the default's."""
    best = min(sorted(seconds), key=lambda size: seconds[size])
    usual = seconds.get(default)
    return default if usual is not None and usual <= seconds[best] * MARGIN else best


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
