"""The functions of `smdistributed.dataparallel.torch.distributed`, over torch.distributed.

Scripts that were written for it run unchanged on any machine; new ones use torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from muster_collectives.runtime import environment
from muster_collectives.runtime.types import ReduceOp
from muster_collectives.torch.group import MusterProcessGroup
from muster_collectives.torch.hooks.average import divides, group_or_world

BACKEND = "smddp"
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.AVERAGE: dist.ReduceOp.AVG,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


def is_available() -> bool:
    """Whether this process was started as a rank of a distributed job: scripts that also run alone
    ask it before they call anything else here."""
    started = dist.is_available() and (dist.is_initialized() or environment.is_rank(os.environ))
    return bool(started)


def is_initialized() -> bool:
    return bool(dist.is_initialized())


def init_process_group(*arguments: Any, **named: Any) -> None:
    """As torch.distributed's; without a backend the collectives are ours.

    Ranks are found in torchrun's variables, else in Open MPI's. Once there is a process group it
    does nothing: older scripts call it twice. Raises SettingsError that names the variable.
    """
    if dist.is_initialized():
        return
    if not arguments:
        named.setdefault("backend", BACKEND)
    if not any(name in named for name in ("init_method", "store", "rank")) and len(arguments) < 2:
        named |= start_options(os.environ)
    dist.init_process_group(*arguments, **named)


def start_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """What torch must be told because its own variables are not all set (pure)."""
    if all(environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return {}
    where = environment.read(environ)
    return {
        "init_method": f"tcp://{_url_host(where.host)}:{where.port}",
        "rank": where.rank,
        "world_size": where.size,
    }


def get_world_size(group: Any = None) -> int:
    return int(dist.get_world_size(group))


def get_rank(group: Any = None) -> int:
    return int(dist.get_rank(group))


def get_local_rank() -> int:
    """This process among those of its host, from 0: of a launcher's variable, else as the ranks
    have found each other. Raises RuntimeError if neither says it."""
    for name in _LOCAL_RANKS:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    world = dist.group.WORLD if dist.is_initialized() else None
    communicator = world.communicator if isinstance(world, MusterProcessGroup) else None
    if communicator is None:
        raise RuntimeError(f"the local rank is not known: set {_LOCAL_RANKS[0]}")
    nodes, rank = communicator.nodes, communicator.rank
    return nodes[:rank].count(nodes[rank])


def all_reduce(tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    """In place; every rank gets the same bits. `op`: one of ReduceOp, or of torch's; None: SUM.

    A work if `async_op`, else None. On backends that have no average the tensor is divided first,
    and integers cannot be averaged.
    """
    op = ReduceOp.SUM if op is None else op
    torch_op = _OPS[op] if isinstance(op, ReduceOp) else op
    if op is ReduceOp.AVERAGE and not divides(group_or_world(group), tensor):
        tensor.div_(dist.get_world_size(group))
        torch_op = dist.ReduceOp.SUM
    return dist.all_reduce(tensor, op=torch_op, group=group, async_op=async_op)


def broadcast(tensor: Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Any:
    """In place, from the rank `src`. A work if `async_op`, else None."""
    return dist.broadcast(tensor, src, group=group, async_op=async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """`tensor_list[r]` becomes rank r's `tensor`. A work if `async_op`, else None."""
    return dist.all_gather(tensor_list, tensor, group=group, async_op=async_op)


def all_to_all_single(
    output_t: Tensor,
    input_t: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Part r of `input_t` goes to rank r; parts are equal unless their sizes are given."""
    return dist.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group=group, async_op=async_op
    )


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Until all ranks of the group have come. `device_ids` is accepted and ignored."""
    del device_ids
    return dist.barrier(group=group, async_op=async_op)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
