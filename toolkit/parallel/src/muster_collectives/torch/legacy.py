"""The functions of `smdistributed.dataparallel.torch.distributed`, over torch.distributed, and the
model wrapper of `smdistributed.dataparallel.torch.parallel`: torch's, with its arguments.

Scripts that were written for it run unchanged on any machine; new ones use torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from muster_collectives.runtime import environment
from muster_collectives.runtime.layout import Address
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


# These have the signatures that they had there.
is_initialized = dist.is_initialized
get_world_size = dist.get_world_size
get_rank = dist.get_rank
all_gather = dist.all_gather


def is_available() -> bool:
    """Whether this process was started as a rank of a distributed job: scripts that also run alone
    ask it before they call anything else here."""
    started = dist.is_available() and (dist.is_initialized() or environment.is_rank(os.environ))
    return bool(started)


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
        "init_method": f"tcp://{Address(where.host, where.port)}",
        "rank": where.rank,
        "world_size": where.size,
    }


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


class DistributedDataParallel(nn.parallel.DistributedDataParallel):  # type: ignore[misc]
    """torch's wrapper with the legacy signature; `no_sync()` and all else are torch's.

    Devices are named for modules on one device alone: on processors, and for modules that lie on
    several devices, `device_ids` and `output_device` are ignored.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        **options: Any,
    ) -> None:
        if not _on_one_device(module):
            device_ids, output_device = None, None
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            **options,
        )


def _on_one_device(module: nn.Module) -> bool:
    devices = {parameter.device for parameter in module.parameters()}
    return len(devices) == 1 and devices != {torch.device("cpu")}
