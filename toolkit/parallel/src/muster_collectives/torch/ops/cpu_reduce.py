"""Plans for the verbs that sum, on CPU tensors. None: the core has no such sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from muster_collectives.runtime.types import DType, Op, Verb
from muster_collectives.torch.ops.arguments import op_of
from muster_collectives.torch.ops.lowered import CoreCall, LoweredOp, plain, reducible, same

__all__ = [
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
]

# all_reduce_coalesced: tensors up to this go together through one call
SMALL_BYTES = 64 << 10
TOGETHER_BYTES = 4 << 20


def all_reduce(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp | None:
    plan = LoweredOp(outputs=list(tensors))
    op = op_of(options.reduceOp)
    for given in tensors:
        if not _reduce_in_place(plan, given, op):
            return None
    return plan


def _reduce_in_place(plan: LoweredOp, given: Any, op: Op | None) -> bool:
    tensor = plain(given)
    kind = None if tensor is None else reducible(tensor, op)
    if tensor is None or kind is None:
        return False
    dtype, which, each = kind
    place = plan.both(tensor)
    plan.steps.append(CoreCall(Verb.ALL_REDUCE, place, place, tensor.numel() * each, dtype, which))
    return True


def all_reduce_coalesced(
    size: int, rank: int, tensors: Sequence[Any], options: Any
) -> LoweredOp | None:
    """Small tensors of one dtype go as one; which are small is the same on all ranks."""
    plan = LoweredOp(outputs=list(tensors))
    op = op_of(options.reduceOp)
    small: dict[torch.dtype, list[torch.Tensor]] = {}
    for given in tensors:
        tensor = plain(given)
        if tensor is None or reducible(tensor, op) is None:
            return None
        if tensor.numel() * tensor.element_size() <= SMALL_BYTES:
            small.setdefault(tensor.dtype, []).append(tensor)
        elif not _reduce_in_place(plan, tensor, op):
            return None
    for together in small.values():
        for part in _rows(together):
            kind = reducible(part[0], op)
            if kind is None:
                return None
            dtype, which, each = kind
            count = sum(tensor.numel() for tensor in part) * each
            place = plan.joined(part, True, True)
            plan.steps.append(CoreCall(Verb.ALL_REDUCE, place, place, count, dtype, which))
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


def reduce(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp | None:
    plan = LoweredOp(outputs=list(tensors))
    op, root = op_of(options.reduceOp), int(options.rootRank)
    for given in tensors:
        tensor = plain(given)
        kind = None if tensor is None else reducible(tensor, op)
        if tensor is None or kind is None:
            return None
        dtype, which, each = kind
        source = plan.both(tensor) if rank == root else plan.source(tensor)
        plan.steps.append(
            CoreCall(
                Verb.REDUCE,
                source,
                source if rank == root else 0,
                tensor.numel() * each,
                dtype,
                which,
                root,
            )
        )
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
        target, source = plain(to), plain(of)
        kind = None if target is None else reducible(target, op)
        if target is None or source is None or kind is None:
            return None
        if source.dtype is not target.dtype or source.numel() != target.numel() * size:
            raise ValueError(
                f"reduce_scatter over {size} ranks: the input has {source.numel()} "
                f"{source.dtype}, and {size} times the output is {target.numel() * size} "
                f"{target.dtype}"
            )
        dtype, which, each = kind
        plan.steps.append(
            CoreCall(
                Verb.REDUCE_SCATTER,
                plan.source(source),
                plan.target(target),
                target.numel() * each,
                dtype,
                which,
            )
        )
    return plan


def reduce_scatter(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], options: Any
) -> LoweredOp | None:
    """Parts of different sizes are one reduce for each root."""
    plan = LoweredOp(outputs=list(outputs))
    op = op_of(options.reduceOp)
    for to, of in zip(outputs, inputs, strict=True):
        target = plain(to)
        parts = [plain(each) for each in of]
        dense = [each for each in parts if each is not None]
        kind = None if target is None else reducible(target, op)
        if target is None or kind is None or len(dense) < len(parts):
            return None
        if len(dense) != size or any(each.dtype is not target.dtype for each in dense):
            raise ValueError(f"reduce_scatter wants a list of {size} tensors of {target.dtype}")
        if dense[rank].numel() != target.numel():
            raise ValueError(
                f"reduce_scatter: part {rank} has {dense[rank].numel()} elements, the output "
                f"{target.numel()}"
            )
        if same(dense):
            dtype, which, each = kind
            plan.steps.append(
                CoreCall(
                    Verb.REDUCE_SCATTER,
                    plan.joined(dense, True, False),
                    plan.target(target),
                    target.numel() * each,
                    dtype,
                    which,
                )
            )
        else:
            _reduce_each(plan, rank, target, dense, kind)
    return plan


def _reduce_each(
    plan: LoweredOp,
    rank: int,
    target: torch.Tensor,
    parts: Sequence[torch.Tensor],
    kind: tuple[DType, Op, int],
) -> None:
    dtype, which, each = kind
    for root, part in enumerate(parts):
        plan.steps.append(
            CoreCall(
                Verb.REDUCE,
                plan.source(part),
                plan.target(target) if rank == root else 0,
                part.numel() * each,
                dtype,
                which,
                root,
            )
        )
