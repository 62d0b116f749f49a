"""Collectives of any process group, or of a bare backend, under either of their spellings.

torch 2.13 calls them `*_single`; before that, and on backends still, they are `*_base`. Each call
waits: on a device that is an order between streams, on a processor the caller stands still.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed import distributed_c10d as c10d

Group = Any  # dist.ProcessGroup, or one of its backends: they share no base class


def all_gather(group: Group, output: Tensor, source: Tensor) -> None:
    """`output` is `source` of every rank, by rank; both contiguous."""
    one_of(group, "all_gather_single", "_allgather_base")(
        output, source, c10d.AllgatherOptions()
    ).wait()


def reduce_scatter(group: Group, output: Tensor, source: Tensor, op: Any) -> None:
    """`output` is this rank's part of the reduction of every rank's `source`; both contiguous."""
    options = c10d.ReduceScatterOptions()
    options.reduceOp = op
    one_of(group, "reduce_scatter_single", "_reduce_scatter_base")(output, source, options).wait()


def all_to_all(group: Group, output: Tensor, source: Tensor) -> None:
    """Part r of `source` goes to rank r; equal parts along the first dimension."""
    one_of(group, "all_to_all_single", "alltoall_base")(
        output, source, [], [], c10d.AllToAllOptions()
    ).wait()


def all_reduce(group: Group, tensor: Tensor, op: Any) -> None:
    """In place."""
    options = c10d.AllreduceOptions()
    options.reduceOp = op
    group.allreduce([tensor], options).wait()


def broadcast(group: Group, tensor: Tensor, root: int) -> None:
    """In place, from the rank `root` of this group."""
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    group.broadcast([tensor], options).wait()


def one_of(group: Group, *names: str) -> Any:
    """The first method of these names that the group has."""
    for name in names:
        found = getattr(group, name, None)
        if found is not None:
            return found
    raise NotImplementedError(f"{type(group).__name__} has none of {', '.join(names)}")
