"""The average of one tensor over a group, as a future; gradients that travel as fp16 or bf16."""

# DDP compares a hook's annotations, so they must not be text: no `from __future__` here.

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

# They divide after the sum, in float32 for 16-bit types; gloo has no average at all.
_DIVIDES = ("muster", "smddp", "nccl")


def group_or_world(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """DDP hooks are given None for the whole world. Raises ValueError without a process group."""
    if group is not None:
        return group
    world = dist.group.WORLD
    if world is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    return world


def divides(group: dist.ProcessGroup, tensor: Tensor) -> bool:
    """Whether the group's all-reduce of such a tensor knows AVG. Of sparse ones none does."""
    if tensor.layout is not torch.strided:
        return False
    device = tensor.device.type
    # "muster", or "cpu:gloo,cuda:nccl" of a group with a backend for each device
    name = str(dist.get_backend_config(group))
    by_device = dict(part.split(":", 1) for part in name.split(",") if ":" in part)
    return by_device.get(device, name).lower() in _DIVIDES


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """The group's deadline; None where the group does not say it."""
    own = getattr(group, "timeout", None)  # ours
    if own is not None:
        return own  # type: ignore[no-any-return]
    for device in ("cpu", "cuda"):
        try:
            options = group._get_backend(torch.device(device)).options
        except (RuntimeError, AttributeError):  # no such backend, or it has none
            continue
        return options._timeout  # type: ignore[no-any-return]
    return None


def average(group: dist.ProcessGroup, tensor: Tensor) -> Future[Any]:
    """A future of `tensor`, averaged in place."""
    if divides(group, tensor):
        return reduced(group, tensor, dist.ReduceOp.AVG)
    # before, so that the sum of 16-bit values does not overflow
    return reduced(group, tensor.div_(group.size()), dist.ReduceOp.SUM)


def reduced(group: dist.ProcessGroup, tensor: Tensor, op: Any) -> Future[Any]:
    """A future of `tensor`, reduced in place. Raises ValueError on a rank outside the group."""
    work = inside(dist.all_reduce(tensor, op=op, group=group, async_op=True))
    return work.get_future().then(_first)


def inside(work: Any) -> Any:
    """The work, which torch leaves out for ranks that are not in the group."""
    if work is None:
        raise ValueError("this rank is not in the group of its communication hook")
    return work


def _first(done: Future[Any]) -> Tensor:
    value = done.value()
    tensor: Tensor = value[0] if isinstance(value, list | tuple) else value
    return tensor


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
