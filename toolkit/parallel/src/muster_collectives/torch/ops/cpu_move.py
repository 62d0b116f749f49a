"""Plans for the verbs that move, on CPU tensors of any dtype. None: not dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from muster_collectives.runtime.types import CoreCall, DType, Verb
from muster_collectives.torch.ops.lowered import Element, LoweredOp, movable, plain, same

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "scatter",
]


def barrier(size: int, rank: int, options: Any) -> LoweredOp | None:
    return LoweredOp(calls=[CoreCall(Verb.BARRIER, 0, 0, 0, DType.U8)])


def broadcast(size: int, rank: int, tensors: Sequence[Any], options: Any) -> LoweredOp | None:
    root = int(options.rootRank)
    plan = LoweredOp(outputs=list(tensors))
    for given in tensors:
        tensor = plain(given)
        if tensor is None:
            return None
        _broadcast(plan, tensor, root, rank == root)
    return plan


def _broadcast(plan: LoweredOp, tensor: torch.Tensor, root: int, mine: bool) -> None:
    place = plan.source(tensor) if mine else plan.target(tensor)
    plan.add(Verb.BROADCAST, place, place, tensor.numel(), movable(tensor), root)


def all_gather_single(
    size: int, rank: int, output: Any, given: Any, options: Any
) -> LoweredOp | None:
    return all_gather_single_coalesced(size, rank, [output], [given], options)


def all_gather_single_coalesced(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Any], options: Any
) -> LoweredOp | None:
    plan = LoweredOp(outputs=list(outputs))
    for to, of in zip(outputs, inputs, strict=True):
        target, source = plain(to), plain(of)
        if target is None or source is None:
            return None
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
) -> LoweredOp | None:
    """Outputs of different sizes are one broadcast for each rank."""
    plan = LoweredOp(outputs=[list(each) for each in outputs])
    for to, of in zip(outputs, inputs, strict=True):
        if not _gathered(plan, size, rank, to, of):
            return None
    return plan


def all_gather_coalesced(
    size: int, rank: int, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], options: Any
) -> LoweredOp | None:
    """`outputs[r][k]` is rank r's `inputs[k]`."""
    plan = LoweredOp(outputs=[list(each) for each in outputs])
    for number, of in enumerate(inputs):
        if not _gathered(plan, size, rank, [each[number] for each in outputs], of):
            return None
    return plan


def _gathered(plan: LoweredOp, size: int, rank: int, to: Sequence[Any], of: Any) -> bool:
    source = plain(of)
    targets = _dense("all_gather", size, to)
    if source is None or targets is None:
        return False
    if any(each.dtype is not source.dtype for each in targets):
        raise ValueError(f"all_gather of {source.dtype} into a list of another dtype")
    if targets[rank].numel() != source.numel():
        raise ValueError(
            f"all_gather: place {rank} of the list has {targets[rank].numel()} elements, the "
            f"input {source.numel()}"
        )
    if same(targets):
        places = plan.source(source), plan.target(*targets)
        plan.add(Verb.ALL_GATHER, *places, source.numel(), movable(source))
        return True
    for root, target in enumerate(targets):
        if root == rank:
            _broadcast(plan, source, root, True)
            plan.after.append((target, source))
        else:
            _broadcast(plan, target, root, False)
    return True


def gather(
    size: int, rank: int, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], options: Any
) -> LoweredOp | None:
    root = int(options.rootRank)
    plan = LoweredOp(outputs=[list(each) for each in outputs])
    for number, of in enumerate(inputs):
        source = plain(of)
        if source is None:
            return None
        target = 0
        if rank == root:
            targets = _dense("gather", size, outputs[number])
            if targets is None:
                return None
            if not same([source, *targets]):
                raise ValueError("gather wants a list of tensors like the input")
            target = plan.target(*targets)
        place = plan.source(source)
        plan.add(Verb.GATHER, place, target, source.numel(), movable(source), root)
    return plan


def scatter(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], options: Any
) -> LoweredOp | None:
    root = int(options.rootRank)
    plan = LoweredOp(outputs=list(outputs))
    for number, to in enumerate(outputs):
        target = plain(to)
        if target is None:
            return None
        source = 0
        if rank == root:
            parts = _dense("scatter", size, inputs[number])
            if parts is None:
                return None
            if not same([target, *parts]):
                raise ValueError("scatter wants a list of tensors like the output")
            source = plan.source(*parts)
        place = plan.target(target)
        plan.add(Verb.SCATTER, source, place, target.numel(), movable(target), root)
    return plan


def all_to_all_single(
    size: int,
    rank: int,
    output: Any,
    given: Any,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
    options: Any,
) -> LoweredOp | None:
    """Splits are along the first dimension; none: equal parts."""
    target, source = plain(output), plain(given)
    if target is None or source is None:
        return None
    if target.dtype is not source.dtype:
        raise ValueError(f"all_to_all of {source.dtype} into {target.dtype}")
    plan = LoweredOp(outputs=[output])
    ins = _parts("input", source, input_splits, size)
    outs = _parts("output", target, output_splits, size)
    _exchange(plan, plan.source(source), plan.target(target), ins, outs, movable(source))
    return plan


def all_to_all(
    size: int, rank: int, outputs: Sequence[Any], inputs: Sequence[Any], options: Any
) -> LoweredOp | None:
    targets, sources = _dense("all_to_all", size, outputs), _dense("all_to_all", size, inputs)
    if targets is None or sources is None:
        return None
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


def _dense(what: str, size: int, tensors: Sequence[Any]) -> list[torch.Tensor] | None:
    if len(tensors) != size:
        raise ValueError(f"{what} over {size} ranks has a list of {len(tensors)} tensors")
    found = [plain(each) for each in tensors]
    dense = [each for each in found if each is not None]
    return dense if len(dense) == len(found) else None
