"""Gradients that travel as fp16 or bf16."""

# DDP compares a hook's annotations, so they must not be text: no `from __future__` here.
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from muster_collectives.torch.hooks.average import average, divides, group_or_world, reduced


def fp16_hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Half the bytes. A gradient beyond 65504 becomes infinite on all ranks: use a GradScaler.

    `state`: the group, None for the world.
    """
    return _averaged_as(torch.float16, state, bucket)


def bf16_hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Future[Tensor]:
    """Half the bytes and the range of float32, 8 bits of precision. `state`: as of fp16_hook."""
    return _averaged_as(torch.bfloat16, state, bucket)


def _averaged_as(
    dtype: torch.dtype, state: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> Future[Tensor]:
    group, buffer = group_or_world(state), bucket.buffer()
    if buffer.layout is not torch.strided or buffer.element_size() <= dtype.itemsize:
        return average(group, buffer)
    if divides(group, buffer):
        future = reduced(group, buffer.to(dtype), dist.ReduceOp.AVG)
    else:  # divided in the wider type, so that the sum of narrow ones does not overflow
        future = reduced(group, (buffer / group.size()).to(dtype), dist.ReduceOp.SUM)
    return future.then(lambda done: buffer.copy_(done.value()))
