"""Plans for the verbs, on CPU tensors. They raise NotLoweredError where a tensor is not dense, or
the core has no such sum. Tensors of any dtype can be moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from muster_collectives.runtime.types import CoreCall, DType, Op, Verb
from muster_collectives.torch.ops.lowered import (
    Element,
    LoweredOp,
    NotLoweredError,
    movable,
    op_of,
    plain,
    reducible,
    same,
)


def barrier(size: int, rank: int, options: Any) -> LoweredOp:
    return LoweredOp(calls=[CoreCall(Verb.BARRIER, 0, 0, 0, DType.U8)])


def broadcast(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp:
    root = int(options.rootRank)
    plan = LoweredOp(outputs=list(tensors))
    for given in tensors:
        _broadcast(plan, plain(given), root, rank == root)
    return plan


def _broadcast(plan: LoweredOp, tensor: torch.Tensor, root: int, mine: bool) -> None:
    place = plan.source(tensor) if mine else plan.target(tensor)
    plan.add(Verb.BROADCAST, place, place, tensor.numel(), movable(tensor), root)


def all_gather_single_coalesced(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Any], options: Any
) -> LoweredOp:
    plan = LoweredOp(outputs=list(outputs))
    for to, of in zip(outputs, inputs, strict=True):
        target, source = plain(to), plain(of)
        if source.dtype is not target.dtype or target.numel() != source.numel() * size:
            raise ValueError(
                f"all_gather over {size} ranks: the output has {target.numel()} {target.dtype}, "
                f"and {size} times the input is {source.numel() * size} {source.dtype}"
            )
        places = plan.source(source), plan.target(target)
        plan.add(Verb.ALL_GATHER, *places, source.numel(), movable(source))
    return plan


def all_gather(
    size: int, rank: int, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], options: Any
) -> LoweredOp:
    """Outputs of different sizes are one broadcast for each rank."""
    plan = LoweredOp(outputs=[list(each) for each in outputs])
    for to, of in zip(outputs, inputs, strict=True):
        targets, source = _dense("all_gather", size, to), plain(of)
        if any(each.dtype is not source.dtype for each in targets):
            raise ValueError(f"all_gather of {source.dtype} into a list of another dtype")
        if targets[rank].numel() != source.numel():
            raise ValueError(
                f"all_gather: place {rank} of the list has {targets[rank].numel()} elements, the "
                f"input {source.numel()}"
            )
        if same(targets):
            target, blocks = plan.row_or_blocks(plan.target, targets, rank, source)
            plan.add(
                Verb.ALL_GATHER, plan.source(source), target, source.numel(), movable(source),
                blocks=blocks,
            )  # fmt: skip
            continue
        for root, target in enumerate(targets):
            _broadcast(plan, source if root == rank else target, root, root == rank)
        plan.after.append((targets[rank], source))
    return plan


def all_gather_coalesced(
    size: int, rank: int, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], options: Any
) -> LoweredOp:
    """`outputs[r][k]` is rank r's `inputs[k]`."""
    plan = all_gather(size, rank, list(zip(*outputs, strict=True)), inputs, options)
    plan.outputs = [list(each) for each in outputs]
    return plan


def gather(
    size: int, rank: int, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], options: Any
) -> LoweredOp:
    root = int(options.rootRank)
    plan = LoweredOp(outputs=[list(each) for each in outputs])
    for number, of in enumerate(inputs):
        source = plain(of)
        target, blocks = 0, None
        if rank == root:
            targets = _dense("gather", size, outputs[number])
            if not same([source, *targets]):
                raise ValueError("gather wants a list of tensors like the input")
            target, blocks = plan.row_or_blocks(plan.target, targets, rank, source)
        place = plan.source(source)
        plan.add(Verb.GATHER, place, target, source.numel(), movable(source), root, blocks)
    return plan


def scatter(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], options: Any
) -> LoweredOp:
    root = int(options.rootRank)
    plan = LoweredOp(outputs=list(outputs))
    for number, to in enumerate(outputs):
        target = plain(to)
        source, blocks = 0, None
        if rank == root:
            parts = _dense("scatter", size, inputs[number])
            if not same([target, *parts]):
                raise ValueError("scatter wants a list of tensors like the output")
            source, blocks = plan.row_or_blocks(plan.source, parts, rank, target)
        place = plan.target(target)
        plan.add(Verb.SCATTER, source, place, target.numel(), movable(target), root, blocks)
    return plan


def all_to_all_single(
    size: int,
    rank: int,
    output: Any,
    given: Any,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
    options: Any,
) -> LoweredOp:
    """Splits are along the first dimension; none: equal parts."""
    target, source = plain(output), plain(given)
    if target.dtype is not source.dtype:
        raise ValueError(f"all_to_all of {source.dtype} into {target.dtype}")
    plan = LoweredOp(outputs=[output])
    ins = _parts("input", source, input_splits, size)
    outs = _parts("output", target, output_splits, size)
    _exchange(plan, plan.source(source), plan.target(target), ins, outs, movable(source))
    return plan


def all_to_all(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Any], options: Any
) -> LoweredOp:
    targets, sources = _dense("all_to_all", size, outputs), _dense("all_to_all", size, inputs)
    if any(each.dtype is not sources[0].dtype for each in (*sources, *targets)):
        raise ValueError("all_to_all wants tensors of one dtype")
    plan = LoweredOp(outputs=list(outputs))
    ins, outs = [each.numel() for each in sources], [each.numel() for each in targets]
    places = plan.source(*sources), plan.target(*targets)
    _exchange(plan, *places, ins, outs, movable(sources[0]))
    return plan


def _exchange(
    plan: LoweredOp, source: int, target: int, ins: Sequence[int], outs: Sequence[int],
    element: Element,
) -> None:  # fmt: skip
    """Always with the counts: whether all are equal is known to one rank alone."""
    counts = [tuple(each * element.width for each in parts) for parts in (ins, outs)]
    plan.calls.append(
        CoreCall(
            Verb.ALL_TO_ALL, source, target, 0, element.dtype, in_counts=counts[0],
            out_counts=counts[1],
        )
    )  # fmt: skip


def _parts(what: str, tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """The elements of each part."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ValueError(f"all_to_all: the {what}'s {rows} rows are no multiple of {size}")
        return [tensor.numel() // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"all_to_all over {size} ranks: splits {list(splits)} of an {what} of {rows} rows"
        )
    per_row = tensor.numel() // rows if rows else 0
    return [split * per_row for split in splits]


def _dense(what: str, size: int, tensors: Sequence[Any]) -> list[torch.Tensor]:
    if len(tensors) != size:
        raise ValueError(f"{what} over {size} ranks has a list of {len(tensors)} tensors")
    return [plain(each) for each in tensors]


# all_reduce of several: tensors up to this go together through one call
SMALL_BYTES = 64 << 10
TOGETHER_BYTES = 4 << 20


def all_reduce(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp:
    """Small tensors of one dtype go as one; which are small is the same on all ranks."""
    plan = LoweredOp(outputs=list(tensors))
    op = op_of(options.reduceOp)
    rows: list[list[torch.Tensor]] = []
    small: dict[torch.dtype, list[torch.Tensor]] = {}
    for given in tensors:
        tensor, _ = _summed(given, op)
        if tensor.numel() * tensor.element_size() <= SMALL_BYTES:
            small.setdefault(tensor.dtype, []).append(tensor)
        else:
            rows.append([tensor])
    rows += [row for together in small.values() for row in _rows(together)]
    for row in rows:
        _, element = _summed(row[0], op)
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


def _summed(given: Any, op: Op | None) -> tuple[torch.Tensor, Element]:
    """The dense tensor and what its elements are."""
    tensor = plain(given)
    element = reducible(tensor.dtype, op)
    if element is None:
        raise NotLoweredError(f"no such reduction of {tensor.dtype}")
    return tensor, element


def reduce(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp:
    plan = LoweredOp(outputs=list(tensors))
    op, root = op_of(options.reduceOp), int(options.rootRank)
    for given in tensors:
        tensor, element = _summed(given, op)
        source = plan.both(tensor) if rank == root else plan.source(tensor)
        target = source if rank == root else 0
        plan.add(Verb.REDUCE, source, target, tensor.numel(), element, root)
    return plan


def reduce_scatter_single_coalesced(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Any], options: Any
) -> LoweredOp:
    plan = LoweredOp(outputs=list(outputs))
    op = op_of(options.reduceOp)
    for to, of in zip(outputs, inputs, strict=True):
        (target, element), source = _summed(to, op), plain(of)
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
) -> LoweredOp:
    """Parts of different sizes are one reduce for each root."""
    plan = LoweredOp(outputs=list(outputs))
    op = op_of(options.reduceOp)
    for to, of in zip(outputs, inputs, strict=True):
        target, element = _summed(to, op)
        parts = [plain(each) for each in of]
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
