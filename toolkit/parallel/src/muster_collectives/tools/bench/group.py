"""The ranks of a measurement (torch's group of ours, gloo's, Open MPI's, our core's own) and the
times of their calls, taken in turns A B C A B C, so that a busy machine slows all of them alike."""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from muster_collectives.core import Communicator, DType, Op, Verb, connect
from muster_collectives.tools.bench.cases import Result, Series, encode_result


class Team:
    """The ranks of `core`, and what they tell each other while they measure. Every method
    is called by all of them."""

    def __init__(self, core: Communicator) -> None:
        self.core = core
        self.rank, self.size = core.rank, core.size

    def texts(self, text: str) -> list[str]:
        """What each rank has to say, on every rank."""
        own = text.encode()
        length = int(self.over_ranks(len(own), Op.MAX))
        padded = bytearray(own.ljust(length + 1, b"\0"))
        everything = bytearray(len(padded) * self.size)
        self.core.all_gather(everything, padded)
        step = len(padded)
        return [everything[at : at + step].rstrip(b"\0").decode()
                for at in range(0, len(everything), step)]  # fmt: skip

    def over_ranks(self, value: float, op: Op) -> float:
        """What `op` makes of all ranks' values."""
        word = array("d", [value])
        address, _ = word.buffer_info()
        self.core.run(
            Verb.ALL_REDUCE, source=address, target=address, count=1, dtype=DType.F64, op=op
        )
        return word[0]


LIMIT_S = 300.0


class BenchGroup(Team):
    """The ranks of a bench with torch: `core` is a group of its own, so that calls through torch do
    not mix with it."""

    def __init__(self, rank: int, size: int, backend: str = "muster") -> None:
        import torch
        import torch.distributed as dist

        from muster_collectives.torch.store import TorchStore  # this registers the backend too

        torch.set_num_threads(1)  # as many processors for each rank as there are ranks
        self.torch, self.dist = torch, dist
        limit = timedelta(seconds=LIMIT_S)
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0, limit
        )
        dist.init_process_group(
            backend, store=dist.PrefixStore("torch", self.store), rank=rank, world_size=size,
            timeout=limit,
        )  # fmt: skip
        self.gloo = dist.new_group(backend="gloo", timeout=limit)
        shared = TorchStore(self.store, "core")
        super().__init__(connect(shared, rank, size, name="bench", timeout_s=LIMIT_S))
        self.mpi = _mpi(size)

    def write(self, output: str, result: Result) -> None:
        """Rank 0 adds a line to the file `output`."""
        if self.rank == 0:
            with open(output, "a", encoding="utf-8") as file:
                file.write(json.dumps(encode_result(result)) + "\n")

    def close(self) -> None:
        self.core.close()
        self.dist.destroy_process_group()


def place() -> tuple[int, int]:
    """Rank and number of ranks, as mpirun or the bench's own start has set them."""
    names = ("RANK", "WORLD_SIZE")
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    return int(os.environ[names[0]]), int(os.environ[names[1]])


def _mpi(size: int) -> Any:
    """mpi4py's MPI where mpirun has started this process, else None."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return None
    from mpi4py import MPI

    return MPI if MPI.COMM_WORLD.Get_size() == size else None


MOST_CALLS = 2000


def measure(
    ranks: Team, calls: Mapping[str, Callable[[], object]], rounds: int, budget_s: float
) -> dict[str, Series]:
    """Collective: every rank calls it with the same names in the same order.

    A call's time is that of the slowest rank. The number of calls in a round is what `budget_s`
    holds for all rounds of a contender together, at least 1.
    """
    count = {name: _calls(ranks, call, budget_s / rounds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            took, used = _round(ranks, call, count[name])
            seconds[name].append(took)
            cpu[name].append(used)
    return {name: Series(tuple(seconds[name]), tuple(cpu[name]), count[name]) for name in calls}


def _calls(ranks: Team, call: Callable[[], object], budget_s: float) -> int:
    call()  # the first makes connections and touches memory
    took, _ = _round(ranks, call, 2)
    return max(1, min(MOST_CALLS, int(budget_s / took)))


def _round(ranks: Team, call: Callable[[], object], count: int) -> tuple[float, float]:
    """Seconds of one call on the slowest rank, processor seconds of one call on all ranks."""
    ranks.core.barrier()
    cpu, began = _cpu_s(), time.perf_counter()
    for _ in range(count):
        call()
    took, used = time.perf_counter() - began, _cpu_s() - cpu
    return ranks.over_ranks(took, Op.MAX) / count, ranks.over_ranks(used, Op.SUM) / count


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
