"""FSDP2 on registered memory: its all-gathers and reduce-scatters copy nothing to staging places.

    fully_shard(model, mesh=mesh)
    use_registered_memory(model)

Through `FSDPModule.set_custom_all_gather` and `set_custom_reduce_scatter` of torch 2.13. What
FSDP gathers is read straight from the output of the rank that owns it, gradients from the input of
the rank that has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
except ImportError as error:  # before torch 2.9 or so
    raise ImportError(
        "muster_collectives.torch.fsdp needs FSDP2's custom collectives: use torch 2.13 or later"
    ) from error
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from muster_collectives.torch.compress.group_calls import all_gather_single, reduce_scatter_single
from muster_collectives.torch.memory import RegisteredPool


class RegisteredAllGather(AllGather):  # type: ignore[misc]  # torch is not checked
    """Gathers into registered memory of the pool."""

    def __init__(self, pool: RegisteredPool) -> None:
        self._pool = pool

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """FSDP writes this rank's part in its place there, so input and output are one."""
        return self._pool.empty(size, dtype, device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        return all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class RegisteredReduceScatter(ReduceScatter):  # type: ignore[misc]  # torch is not checked
    """Reduces from registered memory of the pool. Outputs become gradients, which live on: they
    are ordinary memory. One for each module, `ranks` those of its group."""

    def __init__(self, pool: RegisteredPool, ranks: int) -> None:
        self._pool, self._ranks = pool, ranks
        self._output = -1  # elements of the output that belongs to the last input

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """FSDP asks for the input, then for its output."""
        count = int(torch.Size(size).numel())
        if count == self._output or self._ranks == 1:
            self._output = -1
            return torch.empty(*size, dtype=dtype, device=device)
        self._output = count // self._ranks
        return self._pool.empty(size, dtype, device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        return reduce_scatter_single(
            output=output_tensor, input=input_tensor, group=group, op=op, async_op=async_op
        )


def use_registered_memory(
    model: nn.Module, group: dist.ProcessGroup | None = None, slots: int = 2
) -> RegisteredPool:
    """Every FSDP module of `model` gathers and reduces in registered memory from now on.

    Collective. `group`: the one over which parameters are sharded; found by itself if None. The
    pool that is returned counts what was registered. Raises ValueError if `model` has no FSDP
    module, or several groups.
    """
    modules = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not modules:
        raise ValueError("no module is sharded: call fully_shard first")
    found = group if group is not None else _shard_group(model)
    pool = RegisteredPool(found, slots)
    for module in modules:
        module.set_custom_all_gather(RegisteredAllGather(pool))
        module.set_custom_reduce_scatter(RegisteredReduceScatter(pool, found.size()))
    return pool


def _shard_group(model: nn.Module) -> dist.ProcessGroup:
    meshes = {each.device_mesh for each in model.parameters() if isinstance(each, DTensor)}
    if len(meshes) != 1:
        raise ValueError(
            f"parameters lie on {len(meshes)} device meshes: name the group that shards them"
        )
    mesh = meshes.pop()
    # the last dimension shards; one before it replicates (HSDP)
    found: dist.ProcessGroup = mesh.get_group(mesh.ndim - 1)
    return found
