"""Values of parameters that are cut: this rank's part, and the whole. Each function goes into the
dictionaries and lists that a state is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_cut(value: Any) -> bool:
    """Whether this rank has a part of it."""
    # its import takes longer than torch's own; where nobody has needed it nothing can be cut
    there = sys.modules.get("torch.distributed.tensor")
    return there is not None and isinstance(value, there.DTensor)


def part(value: Any) -> Any:
    """What this rank has of tensors: all of those that are not cut. The same memory."""
    return _each(value, lambda one: one.to_local() if is_cut(one) else one)


def whole(value: Any) -> Any:
    """Of tensors that are cut copies of all of them, in the host's memory. Collective."""
    return _each(value, lambda one: one.detach().full_tensor().cpu() if is_cut(one) else one)


def cut_like(shard: DTensor, value: Any) -> Any:
    """This rank's parts of whole values, which all ranks have. What has another shape than the
    parameter stays as it is."""
    from torch.distributed.tensor import distribute_tensor

    def cut(one: torch.Tensor) -> torch.Tensor:
        if is_cut(one) or one.shape != shard.shape:
            return one
        here = one.detach().to(shard.device)
        return distribute_tensor(here, shard.device_mesh, shard.placements, src_data_rank=None)

    return _each(value, cut)


def as_part(shard: DTensor, value: Any) -> Any:
    """What `part` has given, cut again. What has another shape than the part stays as it is."""
    from torch.distributed.tensor import DTensor

    def joined(one: torch.Tensor) -> torch.Tensor:
        if one.shape != shard.to_local().shape:
            return one
        return DTensor.from_local(
            one.detach().to(shard.device), shard.device_mesh, shard.placements,
            shape=shard.shape, stride=shard.stride(),
        )  # fmt: skip

    return _each(value, joined)


def empty_like(one: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Room for a value of that parameter: this rank's part, where it is cut and has that shape;
    else all of it, in the host's memory."""
    if is_cut(one) and one.shape == torch.Size(shape):
        return torch.empty_like(one.detach(), dtype=dtype)
    return torch.empty(torch.Size(shape), dtype=dtype)


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _each(one, change) for name, one in value.items()}
    if isinstance(value, list):
        return [_each(one, change) for one in value]
    return value
