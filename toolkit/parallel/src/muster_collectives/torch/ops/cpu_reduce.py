"""Plans for the verbs that sum, on CPU tensors. None: the core has no such sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from muster_collectives.runtime.types import Op, Verb
from muster_collectives.torch.ops.arguments import op_of
from muster_collectives.torch.ops.lowered import Element, LoweredOp, plain, reducible, same

__all__ = [
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
]

# all_reduce of several: tensors up to this go together through one call
SMALL_BYTES = 64 << 10
TOGETHER_BYTES = 4 << 20


def all_reduce(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp | None:
    """Small tensors of one dtype go as one; which are small is the same on all ranks."""
    plan = LoweredOp(outputs=list(tensors))
    op = op_of(options.reduceOp)
    rows: list[list[torch.Tensor]] = []
    small: dict[torch.dtype, list[torch.Tensor]] = {}
    for given in tensors:
        tensor = plain(given)
        if tensor is None or reducible(tensor.dtype, op) is None:
            return None
        if tensor.numel() * tensor.element_size() <= SMALL_BYTES:
            small.setdefault(tensor.dtype, []).append(tensor)
        else:
            rows.append([tensor])
    rows += [row for together in small.values() for row in _rows(together)]
    for row in rows:
        element = reducible(row[0].dtype, op)
        if element is None:
            return None
        place = plan.both(*row)
        plan.add(Verb.ALL_REDUCE, place, place, sum(each.numel() for each in row), element)
    return plan


def _rows(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """In parts of at most TOGETHER_BYTES."""
    rows: list[list[torch.Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        length = tensor.numel() * tensor.element_size()
        if rows[-1] and filled + length > TOGETHER_BYTES:
            rows.append([])
            filled = 0
        rows[-1].append(tensor)
        filled += length
    return rows


def _reducible(given: Any, op: Op | None) -> tuple[torch.Tensor, Element] | None:
    """The dense tensor and what its elements are; None where the core has no such sum."""
    tensor = plain(given)
    element = None if tensor is None else reducible(tensor.dtype, op)
    return None if tensor is None or element is None else (tensor, element)


def reduce(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp | None:
    plan = LoweredOp(outputs=list(tensors))
    op, root = op_of(options.reduceOp), int(options.rootRank)
    for given in tensors:
        found = _reducible(given, op)
        if found is None:
            return None
        tensor, element = found
        source = plan.both(tensor) if rank == root else plan.source(tensor)
        target = source if rank == root else 0
        plan.add(Verb.REDUCE, source, target, tensor.numel(), element, root)
    return plan


def reduce_scatter_single(
    size: int, rank: int, output: Any, given: Any, options: Any
) -> LoweredOp | None:
    return reduce_scatter_single_coalesced(size, rank, [output], [given], options)


def reduce_scatter_single_coalesced(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Any], options: Any
) -> LoweredOp | None:
    plan = LoweredOp(outputs=list(outputs))
    op = op_of(options.reduceOp)
    for to, of in zip(outputs, inputs, strict=True):
        found, source = _reducible(to, op), plain(of)
        if found is None or source is None:
            return None
        target, element = found
        if source.dtype is not target.dtype or source.numel() != target.numel() * size:
            raise ValueError(
                f"reduce_scatter over {size} ranks: the input has {source.numel()} "
                f"{source.dtype}, and {size} times the output is {target.numel() * size} "
                f"{target.dtype}"
            )
        places = plan.source(source), plan.target(target)
        plan.add(Verb.REDUCE_SCATTER, *places, target.numel(), element)
    return plan


def reduce_scatter(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], options: Any
) -> LoweredOp | None:
    """Parts of different sizes are one reduce for each root."""
    plan = LoweredOp(outputs=list(outputs))
    op = op_of(options.reduceOp)
    for to, of in zip(outputs, inputs, strict=True):
        found = _reducible(to, op)
        parts = [each for each in map(plain, of) if each is not None]
        if found is None or len(parts) < len(of):
            return None
        target, element = found
        if len(parts) != size or any(each.dtype is not target.dtype for each in parts):
            raise ValueError(f"reduce_scatter wants a list of {size} tensors of {target.dtype}")
        if parts[rank].numel() != target.numel():
            raise ValueError(
                f"reduce_scatter: part {rank} has {parts[rank].numel()} elements, the output "
                f"{target.numel()}"
            )
        if same(parts):
            places = plan.source(*parts), plan.target(target)
            plan.add(Verb.REDUCE_SCATTER, *places, target.numel(), element)
            continue
        for root, part in enumerate(parts):
            places = plan.source(part), plan.target(target) if rank == root else 0
            plan.add(Verb.REDUCE, *places, part.numel(), element, root)
    return plan
