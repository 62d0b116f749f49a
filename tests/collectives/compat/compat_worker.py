"""A script for the legacy library, on two ranks of Open MPI's variables; run by test_compat.py."""

from __future__ import annotations

import logging
import os

import torch

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
from smdistributed.dataparallel.torch import distributed as dist
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
from smdistributed.dataparallel.torch.parallel.distributed import (
    DistributedDataParallel as LongerName,
)

logging.basicConfig(level=logging.INFO, format="LOG %(message)s")
torch.set_num_threads(1)


def collectives(rank: int, size: int) -> None:
    for op, expected in (
        (dist.ReduceOp.SUM, 3.0), (dist.ReduceOp.AVERAGE, 1.5),
        (dist.ReduceOp.MIN, 1.0), (dist.ReduceOp.MAX, 2.0),
    ):  # fmt: skip
        tensor = torch.full((1000,), rank + 1.0)
        assert dist.all_reduce(tensor, op=op) is None
        assert bool((tensor == expected).all()), (op, tensor)
    tensor = torch.full((10,), rank + 1.0)
    dist.all_reduce(tensor, dist.ReduceOp.SUM, async_op=True).wait()
    assert bool((tensor == 3).all())
    dist.all_reduce(tensor.fill_(rank + 1.0), None)
    assert bool((tensor == 3).all())
    dist.broadcast(tensor.fill_(rank), 1)
    assert bool((tensor == 1).all())
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    assert [float(part[0]) for part in parts] == [0.0, 1.0]
    output, source = torch.empty(4), torch.arange(4.0) + 10 * rank
    dist.all_to_all_single(output_t=output, input_t=source, group=dist.group.WORLD)
    assert output.tolist() == [2.0 * rank, 2.0 * rank + 1, 10 + 2.0 * rank, 11 + 2.0 * rank]
    dist.barrier(device_ids=[0])


def training(rank: int, size: int) -> None:
    torch.manual_seed(rank)  # the wrapper makes rank 0's model that of all
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
    model = DistributedDataParallel(module, device_ids=[rank], output_device=rank)
    assert issubclass(DistributedDataParallel, torch.nn.parallel.DistributedDataParallel)
    assert LongerName is DistributedDataParallel
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        with model.no_sync():
            model(torch.randn(4, 8)).sum().backward()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert number >= 0
    flat = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    parts = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(parts, flat)
    assert torch.equal(parts[0], parts[1])


def main() -> None:
    alone = {**os.environ}
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
        os.environ.pop(name, None)
    assert not dist.is_available(), "a process that nobody has started as a rank is one"
    os.environ.update(alone)
    assert dist.is_available() and not dist.is_initialized()
    dist.init_process_group()
    dist.init_process_group()  # as older scripts do
    assert dist.is_initialized() and torch.distributed.get_backend() == "smddp"
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size) == (int(os.environ["OMPI_COMM_WORLD_RANK"]), 2)
    assert dist.get_local_rank() == rank
    del os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]
    assert dist.get_local_rank() == rank  # as the ranks have found each other
    collectives(rank, size)
    training(rank, size)
    torch.distributed.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
