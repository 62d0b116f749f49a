"""What a verb comes to on CPU tensors: calls of the core, and copies around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from muster_collectives.runtime.types import DType, Op, Verb
from muster_collectives.torch.ops import views
from muster_collectives.torch.ops.arguments import DTYPES, complex_parts

__all__ = ["LoweredOp", "CoreCall", "adjacent", "plain", "reducible", "same", "width"]


class Run(Protocol):
    """`Communicator.run`."""

    def __call__(
        self,
        verb: Verb,
        *,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: Op = ...,
        root: int = ...,
        in_counts: Sequence[int] | None = ...,
        out_counts: Sequence[int] | None = ...,
        timeout_s: float | None = ...,
    ) -> None: ...


@dataclass(frozen=True)
class CoreCall:
    """One call of the core. `source` and `target` are addresses, 0 where there is none."""

    verb: Verb
    source: int
    target: int
    count: int
    dtype: DType
    op: Op = Op.SUM
    root: int = 0
    in_counts: tuple[int, ...] | None = None
    out_counts: tuple[int, ...] | None = None


@dataclass
class LoweredOp:
    """`before` and `after` are copies (to, from); `keep` is memory that the addresses point to.

    Copies are made when the plan runs, not when it is made: an operation may use what the one
    queued before it wrote.
    """

    outputs: list[Any] = field(default_factory=list)
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    steps: list[CoreCall] = field(default_factory=list)
    after: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    first: Callable[[], object] | None = None  # what comes before everything

    def perform(self, run: Run, timeout_s: float | None) -> None:
        if self.first is not None:
            self.first()
        self.copy_in()
        for step in self.steps:
            run(
                step.verb, source=step.source, target=step.target, count=step.count,
                dtype=step.dtype, op=step.op, root=step.root, in_counts=step.in_counts,
                out_counts=step.out_counts, timeout_s=timeout_s,
            )  # fmt: skip
        self.copy_out()

    def copy_in(self) -> None:
        for to, of in self.before:
            views.write(to, of)

    def copy_out(self) -> None:
        for to, of in self.after:
            views.write(to, of)

    # --- addresses of tensors, staged where they are not contiguous

    def source(self, tensor: torch.Tensor) -> int:
        """Where the core reads it."""
        return int(self._staged(tensor, True, False).data_ptr())

    def target(self, tensor: torch.Tensor) -> int:
        """Where the core writes it."""
        return int(self._staged(tensor, False, True).data_ptr())

    def both(self, tensor: torch.Tensor) -> int:
        """Where the core reads and writes it."""
        return int(self._staged(tensor, True, True).data_ptr())

    def joined(self, tensors: Sequence[torch.Tensor], read: bool, write: bool) -> int:
        """The address of `tensors` in one row: their own where they lie so, else of a copy."""
        self.keep.append(tensors)
        if adjacent(tensors):  # those without elements have no address
            return int(next(each.data_ptr() for each in tensors if each.numel()))
        total = sum(each.numel() for each in tensors)
        row = torch.empty(total, dtype=tensors[0].dtype)
        self.keep.append(row)
        place = 0
        for each in tensors:
            part = row[place : place + each.numel()].view(each.shape)
            place += each.numel()
            if read:
                self.before.append((part, each))
            if write:
                self.after.append((each, part))
        return int(row.data_ptr())

    def _staged(self, tensor: torch.Tensor, read: bool, write: bool) -> torch.Tensor:
        self.keep.append(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.keep.append(copy)
        if read:
            self.before.append((copy, tensor))
        if write:
            self.after.append((tensor, copy))
        return copy


def plain(tensor: Any) -> torch.Tensor | None:
    """The dense tensor behind `tensor`; None if there is none (sparse)."""
    wait = getattr(tensor, "trigger_wait", None)
    if wait is not None:  # the result of a functional collective
        tensor = wait()
    return tensor if tensor.layout is torch.strided else None


def same(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all have the same dtype and number of elements."""
    first = tensors[0]
    return all(each.dtype is first.dtype and each.numel() == first.numel() for each in tensors[1:])


def adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether they lie one after the other without gaps, as the parts of one tensor do."""
    place = None
    for each in tensors:
        if not each.is_contiguous() or each.is_conj() or each.is_neg():
            return False
        if not each.numel():
            continue
        if place is not None and each.data_ptr() != place:
            return False
        place = each.data_ptr() + each.numel() * each.element_size()
    return place is not None


def width(tensor: torch.Tensor) -> tuple[DType, int]:
    """For moves: the core's type, and how many of it an element is. Any type can be moved."""
    kind = DTYPES.get(tensor.dtype)
    return (kind, 1) if kind is not None else (DType.U8, tensor.element_size())


def reducible(tensor: torch.Tensor, op: Op | None) -> tuple[DType, Op, int] | None:
    """For sums: the core's type and operation, and how many of it an element is; None where the
    core has no such sum."""
    if op is None:
        return None
    kind = DTYPES.get(tensor.dtype)
    if kind is not None:
        floats = tensor.dtype.is_floating_point
        if op is Op.AVG and not floats:
            return None
        if op in (Op.BAND, Op.BOR, Op.BXOR) and floats:
            return None
        return kind, op, 1
    if tensor.dtype is torch.bool:  # bytes of 0 and 1: "any" and "all" must stay so
        logical = {Op.SUM: Op.MAX, Op.PROD: Op.MIN, Op.AVG: None}.get(op, op)
        return None if logical is None else (DType.U8, logical, 1)
    parts = complex_parts(tensor.dtype)
    if parts is not None and op in (Op.SUM, Op.AVG):
        return parts, op, 2
    return None
