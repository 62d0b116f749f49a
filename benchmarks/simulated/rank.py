"""One rank of a measured run: `rank VERB SIZES BATCHES`, in the namespace of its environment. Rank
0 writes, for each size, the seconds of a call in each batch, and what it sent in one."""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from typing import Any

from benchmarks.collectives.links import enter
from muster_collectives.core import Communicator, DType, Op, Verb, init

_BATCH_S = 0.3
_MOST = 200


def main(verb: str, sizes: str, batches: str) -> None:
    enter(os.environ)
    with init() as world:
        for size in map(int, sizes.split(",")):
            found = _measured(world, Verb[verb], size, int(batches))
            if world.rank == 0:
                print(json.dumps(found))


def _measured(world: Communicator, verb: Verb, size_bytes: int, batches: int) -> dict[str, Any]:
    values = array("f", bytes(size_bytes))
    address, count = values.buffer_info()

    def call() -> None:
        world.run(verb, source=address, target=address, count=count, dtype=DType.F32, op=Op.SUM)

    sent, spent = [], []
    for _ in range(4):
        before, began = world.stats().sent_bytes, time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
        sent.append(world.stats().sent_bytes - before)
    least = array("d", [min(spent)])
    world.all_reduce(least, Op.MAX)
    calls = max(1, min(_MOST, int(_BATCH_S / least[0])))
    taken = []
    for _ in range(batches):
        world.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - began) / calls)
    # heartbeats of a long wait are sent bytes as well
    return {"size_bytes": size_bytes, "seconds": taken, "sent_bytes": min(sent)}


if __name__ == "__main__":
    main(*sys.argv[1:])
