"""One rank of a job that loses another: `lost_rank BACKEND waiting|inside|idle VICTIM`.

`idle`: the victim lives, and aborts the group when it gets SIGUSR1, in no call itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

from benchmarks.collectives.links import enter
from muster_collectives.tools.bench.group import place

LARGE = 16 << 20  # elements
MINUTES = 2.0
OPEN_S = 10.0


def main(backend: str, state: str, victim: int) -> None:
    enter(os.environ)
    import torch
    import torch.distributed as dist

    if backend == "muster":
        import muster_collectives.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    rank, size = place()
    limit = timedelta(minutes=MINUTES)
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=limit)
    data = torch.ones(LARGE if state == "inside" else 1024)
    dist.all_reduce(data)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    print("busy", flush=True)
    if state == "waiting" and rank == victim:
        signal.pause()  # until it is killed
    if state == "idle" and rank == victim:
        signal.pause()
        dist.distributed_c10d._get_default_group().abort()
        time.sleep(OPEN_S)  # its group stays open: the others do not hear its end
        return
    try:
        while True:
            dist.all_reduce(data)
    except RuntimeError as error:
        told = {"rank": rank, "failed_at": time.monotonic(), "kind": type(error).__name__,
                "ranks": list(getattr(error, "ranks", ()))}  # fmt: skip
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
