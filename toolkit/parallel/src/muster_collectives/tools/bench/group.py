"""The ranks of a measurement: torch's group of ours, gloo's, Open MPI's, and our core's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from muster_collectives.core import connect
from muster_collectives.tools.bench.team import Team

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

    def close(self) -> None:
        self.core.close()
        self.dist.destroy_process_group()


def place(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and number of ranks, as mpirun or the bench's own start has set them."""
    if "OMPI_COMM_WORLD_RANK" in environ:
        return int(environ["OMPI_COMM_WORLD_RANK"]), int(environ["OMPI_COMM_WORLD_SIZE"])
    return int(environ["RANK"]), int(environ["WORLD_SIZE"])


def _mpi(size: int) -> Any:
    """mpi4py's MPI where mpirun has started this process, else None."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return None
    from mpi4py import MPI

    return MPI if MPI.COMM_WORLD.Get_size() == size else None
