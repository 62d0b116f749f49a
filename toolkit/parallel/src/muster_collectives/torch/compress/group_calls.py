"""Collectives of any process group, or of a bare backend, under either of their spellings.

torch 2.13 calls them `*_single`; before that, and on backends still, they are `*_base`. Each gives
a work: on a device its wait is an order between streams, on a processor the caller stands still.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

Group = Any  # dist.ProcessGroup, or one of its backends: they share no base class
# torch's own functions; 2.13 has renamed them and warns about the old names
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


def all_gather(group: Group, output: Tensor, source: Tensor) -> Any:
    """`output` is `source` of every rank, by rank; both contiguous."""
    gather = _one_of(group, "all_gather_single", "_allgather_base")
    return gather(output, source, c10d.AllgatherOptions())


def reduce_scatter(group: Group, output: Tensor, source: Tensor, op: Any) -> Any:
    """`output` is this rank's part of the reduction of every rank's `source`; both contiguous."""
    options = c10d.ReduceScatterOptions()
    options.reduceOp = op
    scatter = _one_of(group, "reduce_scatter_single", "_reduce_scatter_base")
    return scatter(output, source, options)


def all_to_all(group: Group, output: Tensor, source: Tensor) -> Any:
    """Part r of `source` goes to rank r; equal parts along the first dimension."""
    exchange = _one_of(group, "all_to_all_single", "alltoall_base")
    return exchange(output, source, [], [], c10d.AllToAllOptions())


def all_reduce(group: Group, tensor: Tensor, op: Any) -> Any:
    """In place."""
    options = c10d.AllreduceOptions()
    options.reduceOp = op
    return group.allreduce([tensor], options)


def broadcast(group: Group, tensor: Tensor, root: int) -> Any:
    """In place, from the rank `root` of this group."""
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return group.broadcast([tensor], options)


def _one_of(group: Group, *names: str) -> Any:
    """The first method of these names that the group has."""
    for name in names:
        found = getattr(group, name, None)
        if found is not None:
            return found
    raise NotImplementedError(f"{type(group).__name__} has none of {', '.join(names)}")
