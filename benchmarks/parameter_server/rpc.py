"""The same parameter server with torch.distributed.rpc: two shards, two workers, TensorPipe.

One call for each server pushes the gradient and is answered with the parameters when all workers
have pushed: the pattern of torch's own tutorial ("batch processing with asynchronous execution").
The workers leave the parameters where the call has put them, which spares them a copy.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings

import torch
from torch import Tensor
from torch.distributed import rpc

SERVERS = WORKERS = 2


class Shard:
    """One server's part, with plain SGD of learning rate 1."""

    def __init__(self, elements: int) -> None:
        self.parameters = torch.zeros(elements)
        self._lock = threading.Lock()
        self._total: Tensor | None = None
        self._waiting: list[torch.futures.Future[Tensor]] = []

    def push_pull(self, gradient: Tensor) -> torch.futures.Future[Tensor]:
        """The parameters, once all workers' gradients were applied."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        with self._lock:
            self._total = gradient if self._total is None else self._total.add_(gradient)
            self._waiting.append(future)
            if len(self._waiting) < WORKERS:
                return future
            self.parameters.add_(self._total, alpha=-1.0 / WORKERS)
            waiting, self._waiting, self._total = self._waiting, [], None
        for one in waiting:
            one.set_result(self.parameters)
        return future


_shards: list[Shard] = []  # rpc calls functions by name, so the shard has to be the module's


def make_shard(elements: int) -> None:
    _shards.append(Shard(elements))


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push_pull(gradient: Tensor) -> torch.futures.Future[Tensor]:
    return _shards[0].push_pull(gradient)


def main(elements: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    name = f"server{rank}" if rank < SERVERS else f"worker{rank - SERVERS}"
    rpc.init_rpc(name, rank=rank, world_size=SERVERS + WORKERS)
    if rank == SERVERS:
        for number in range(SERVERS):
            rpc.rpc_sync(f"server{number}", make_shard, (elements // SERVERS,))
    if rank >= SERVERS:
        _work(torch.ones(elements).chunk(SERVERS))
    rpc.shutdown()


def _work(gradients: tuple[Tensor, ...]) -> None:
    print("ready", flush=True)
    steps, found = 0, []
    for _ in sys.stdin:
        began = time.monotonic()
        calls = [
            rpc.rpc_async(f"server{number}", push_pull, (gradient,))
            for number, gradient in enumerate(gradients)
        ]
        found = [call.wait() for call in calls]
        print(time.monotonic() - began, flush=True)
        steps += 1
    if any(not torch.equal(part, torch.full_like(part, -float(steps))) for part in found):
        raise RuntimeError("the parameters are wrong")


if __name__ == "__main__":
    # under its own name, so that what rpc calls here is what it finds there
    from benchmarks.parameter_server import rpc as itself

    itself.main(int(sys.argv[1]))
