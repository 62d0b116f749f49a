"""The verbs of c10d: one table, from which the group's methods are made, in all spellings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from muster_collectives.torch.ops import cpu_move, cpu_reduce
from muster_collectives.torch.ops.arguments import C10dVerb
from muster_collectives.torch.ops.lowered import LoweredOp

__all__ = ["VERBS"]


def _verb(
    lower: Callable[..., LoweredOp | None],
    spellings: str,
    levels: tuple[int, ...],
    options: str,
    *extras: str,
) -> C10dVerb:
    kind: Any = getattr(dist, options, None) or getattr(dist.distributed_c10d, options)
    return C10dVerb(lower, tuple(spellings.split()), levels, kind, extras)


_REDUCE, _MOVE = cpu_reduce, cpu_move
_TABLE = (
    _verb(_REDUCE.all_reduce, "allreduce", (1,), "AllreduceOptions", "op", "timeout"),
    _verb(_REDUCE.all_reduce, "allreduce_coalesced", (1,), "AllreduceCoalescedOptions"),
    _verb(_REDUCE.reduce, "reduce", (1,), "ReduceOptions", "root", "op", "timeout"),
    _verb(
        _REDUCE.reduce_scatter, "reduce_scatter", (1, 2), "ReduceScatterOptions", "op", "timeout"
    ),
    _verb(
        _REDUCE.reduce_scatter_single, "reduce_scatter_single _reduce_scatter_base", (0, 0),
        "ReduceScatterOptions", "op", "timeout",
    ),
    _verb(
        _REDUCE.reduce_scatter_single_coalesced,
        "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced", (1, 1),
        "ReduceScatterOptions",
    ),
    _verb(_MOVE.broadcast, "broadcast", (1,), "BroadcastOptions", "root", "timeout"),
    _verb(_MOVE.all_gather, "allgather", (2, 1), "AllgatherOptions", "timeout"),
    _verb(_MOVE.all_gather_coalesced, "allgather_coalesced", (2, 1), "AllgatherOptions"),
    _verb(
        _MOVE.all_gather_single, "all_gather_single _allgather_base", (0, 0), "AllgatherOptions",
        "timeout",
    ),
    _verb(
        _MOVE.all_gather_single_coalesced,
        "all_gather_single_coalesced allgather_into_tensor_coalesced", (1, 1), "AllgatherOptions",
    ),
    _verb(_MOVE.gather, "gather", (2, 1), "GatherOptions", "root", "timeout"),
    _verb(_MOVE.scatter, "scatter", (1, 2), "ScatterOptions", "root", "timeout"),
    _verb(
        _MOVE.all_to_all_single, "all_to_all_single alltoall_base", (0, 0, -1, -1),
        "AllToAllOptions", "timeout",
    ),
    _verb(_MOVE.all_to_all, "alltoall", (1, 1), "AllToAllOptions", "timeout"),
    _verb(_MOVE.barrier, "barrier", (), "BarrierOptions", "timeout"),
)  # fmt: skip
VERBS: Mapping[str, C10dVerb] = {verb.name: verb for verb in _TABLE}
