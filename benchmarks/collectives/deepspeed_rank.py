"""One rank of one of two sets that take turns: `deepspeed_rank ROUNDS OUTPUT`.

RANK counts over both sets; the first rank of all writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.collectives.deepspeed import BACKENDS, RANKS, WHAT
from muster_collectives.tools.bench.cases import Case, Result, Series, encode_result

WIDTH, LAYERS, BATCH = 1024, 3, 16
BUDGET_S = 2.0
LIMIT = timedelta(seconds=300)
WARM = 3


class Turns:
    """A baton in a store: `mine(round)` returns when it is this set's turn."""

    def __init__(self, store: Any, number: int) -> None:
        self._store, self._number = store, number

    def mine(self, turn: int) -> None:
        before = (turn, self._number - 1) if self._number else (turn - 1, len(BACKENDS) - 1)
        if before[0] >= 0:
            self._store.wait([_key(*before)], LIMIT)

    def done(self, turn: int) -> None:
        """Of one rank of a set, when all of them are."""
        self._store.set(_key(turn, self._number), b"1")


def main(rounds: int, output: str) -> None:
    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed as dist

    import muster_collectives.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    place = int(os.environ["RANK"])
    number, rank = divmod(place, RANKS)
    backend = BACKENDS[number]
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), RANKS * len(BACKENDS),
        place == 0, LIMIT,
    )  # fmt: skip
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group(
        backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=RANKS, timeout=LIMIT
    )
    turns = Turns(store, number)
    turns.mine(0)
    step, size_bytes = _trained(torch, rank)
    for _ in range(WARM):
        step()
    took = _slowest(torch, dist, step, 2)
    count = max(1, int(BUDGET_S / rounds / took))
    _pass_on(dist, turns, rank, 0)
    seconds = []
    for turn in range(1, rounds + 1):
        turns.mine(turn)
        seconds.append(_slowest(torch, dist, step, count))
        _pass_on(dist, turns, rank, turn)
    if rank == 0:
        store.set(f"seconds-{backend}", json.dumps(seconds))
    if place == 0:
        with open(output, "w", encoding="utf-8") as file:
            file.write(json.dumps(encode_result(_result(store, size_bytes, count))))
    store.add("over", 1)
    _until_all(store)
    dist.destroy_process_group()


def _trained(torch: Any, rank: int) -> tuple[Callable[[], None], int]:
    import deepspeed

    # none of its operators is of use here, and one would be compiled at the start of every new user
    deepspeed.ops.__compatible_ops__ = {}
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    size_bytes = sum(each.numel() * 4 for each in model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
            "zero_allow_untested_optimizer": True,  # it knows Adam and its like
        },
    )  # fmt: skip
    chance = torch.Generator().manual_seed(rank)
    data = torch.randn(BATCH, WIDTH, generator=chance)

    def step() -> None:
        engine.backward(engine(data).square().mean())
        engine.step()

    return step, size_bytes


def _slowest(torch: Any, dist: Any, step: Callable[[], None], count: int) -> float:
    """Seconds of a step on the slowest rank of this set."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        step()
    took = torch.tensor([(time.perf_counter() - began) / count], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _pass_on(dist: Any, turns: Turns, rank: int, turn: int) -> None:
    dist.barrier()
    if rank == 0:
        turns.done(turn)


def _result(store: Any, size_bytes: int, count: int) -> Result:
    series = {}
    for backend in BACKENDS:
        store.wait([f"seconds-{backend}"], LIMIT)
        seconds = tuple(json.loads(store.get(f"seconds-{backend}")))
        series[backend] = Series(seconds, (0.0,) * len(seconds), count)
    return Result(Case(WHAT, "float32", size_bytes, BACKENDS), RANKS, series, {})


def _until_all(store: Any) -> None:
    """The store lives in one of the ranks: it waits for the others."""
    end = time.monotonic() + LIMIT.total_seconds()
    while store.add("over", 0) < RANKS * len(BACKENDS) and time.monotonic() < end:
        time.sleep(0.01)


def _key(turn: int, number: int) -> str:
    return f"turn-{turn}-{number}"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
