"""What a verb comes to on CPU tensors: calls of the core, and copies around them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from muster_collectives.runtime.types import DTYPE_NAMES, CoreCall, DType, Op, Verb, is_defined
from muster_collectives.torch.ops import views

_DTYPES: Mapping[torch.dtype, DType] = {
    getattr(torch, name): dtype for dtype, name in DTYPE_NAMES.items()
}
_COMPLEX: Mapping[torch.dtype, DType] = {torch.complex64: DType.F32, torch.complex128: DType.F64}


# By the hash, which is the number of the operation: comparing two ReduceOp objects costs a
# microsecond, and ReduceOp.SUM itself is of another type, so that `op in (SUM, AVG)` is never true.
OPS: Mapping[int, Op] = {
    hash(dist.ReduceOp(each)): op
    for each, op in (
        (dist.ReduceOp.SUM, Op.SUM),
        (dist.ReduceOp.AVG, Op.AVG),
        (dist.ReduceOp.MIN, Op.MIN),
        (dist.ReduceOp.MAX, Op.MAX),
        (dist.ReduceOp.PRODUCT, Op.PROD),
        (dist.ReduceOp.BAND, Op.BAND),
        (dist.ReduceOp.BOR, Op.BOR),
        (dist.ReduceOp.BXOR, Op.BXOR),
    )
}


class NotLoweredError(Exception):
    """The core does not do this: a tensor is not dense, or it has no such sum."""


class Element(NamedTuple):
    """What an element of a tensor is to the core: `width` values of `dtype`, reduced by `op`."""

    dtype: DType
    op: Op
    width: int


@dataclass
class LoweredOp:
    """`before` and `after` are copies (to, from); `keep` is memory that the addresses point to.

    Copies are made when the operation runs, not when it is made: it may use what the one queued
    before it wrote.
    """

    outputs: list[Any] = field(default_factory=list)
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    calls: list[CoreCall] = field(default_factory=list)
    after: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    first: Callable[[], object] | None = None  # what comes before everything

    def add(
        self, verb: Verb, source: int, target: int, count: int, element: Element, root: int = 0,
        blocks: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        """A call; `count` in elements of the tensors."""
        count *= element.width
        self.calls.append(
            CoreCall(verb, source, target, count, element.dtype, element.op, root, blocks=blocks)
        )

    def perform(self, run: Callable[..., None], timeout_s: float | None) -> None:
        """`run`: `Communicator.run`."""
        if self.first is not None:
            self.first()
        self.copy_in()
        for call in self.calls:
            run(
                call.verb, source=call.source, target=call.target, count=call.count,
                dtype=call.dtype, op=call.op, root=call.root, in_counts=call.in_counts,
                out_counts=call.out_counts, blocks=call.blocks, timeout_s=timeout_s,
            )  # fmt: skip
        self.copy_out()

    def copy_in(self) -> None:
        for to, of in self.before:
            views.write(to, of)

    def copy_out(self) -> None:
        for to, of in self.after:
            views.write(to, of)

    # --- addresses of tensors, staged where they are not contiguous

    def source(self, *tensors: torch.Tensor, in_a_copy: bool = False) -> int:
        """Where the core reads them, in one row."""
        return self._row(tensors, True, False, in_a_copy)

    def target(self, *tensors: torch.Tensor, in_a_copy: bool = False) -> int:
        """Where the core writes them, in one row."""
        return self._row(tensors, False, True, in_a_copy)

    def both(self, *tensors: torch.Tensor) -> int:
        """Where the core reads and writes them, in one row."""
        return self._row(tensors, True, True)

    def row_or_blocks(
        self, place: Callable[..., int], tensors: Sequence[torch.Tensor], own: int,
        beside: torch.Tensor,
    ) -> tuple[int, tuple[int, ...] | None]:  # fmt: skip
        """Where `place` (`source` or `target`) has them: in one row where they lie so, which may
        be registered memory, else each where it lies. `beside`: what the same call reads or writes
        besides; it may be the `own` one of them. Where one would be written while another is still
        to be read, in a copy."""
        is_own = beside.data_ptr() == tensors[own].data_ptr()
        apart = _disjoint(tensors if is_own else [*tensors, beside])
        if not apart or _adjacent(tensors):
            return place(*tensors, in_a_copy=not apart), None
        return 0, tuple(map(place, tensors))

    def _row(
        self, tensors: Sequence[torch.Tensor], read: bool, write: bool, in_a_copy: bool = False
    ) -> int:
        """The address of `tensors` in one row: their own where they lie so, else of a copy."""
        self.keep.append(tensors)
        if not in_a_copy and _adjacent(tensors):  # those without elements have no address
            return int(next((each.data_ptr() for each in tensors if each.numel()), 0))
        total = sum(each.numel() for each in tensors)
        row = torch.empty(total, dtype=tensors[0].dtype, device="cpu")
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


def plain(tensor: Any) -> torch.Tensor:
    """The dense tensor behind `tensor`. Raises NotLoweredError if there is none (sparse)."""
    wait = getattr(tensor, "trigger_wait", None)
    if wait is not None:  # the result of a functional collective
        tensor = wait()
    if tensor.layout is not torch.strided:
        raise NotLoweredError(f"a tensor of layout {tensor.layout}")
    return tensor


def same(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all have the same dtype and number of elements."""
    first = tensors[0]
    return all(each.dtype is first.dtype and each.numel() == first.numel() for each in tensors[1:])


def is_as_it_lies(tensor: torch.Tensor) -> bool:
    """Whether the numbers in its memory, in a row, are what it says."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether they lie one after the other without gaps, as the parts of one tensor do."""
    place = None
    for each in tensors:
        if not is_as_it_lies(each):
            return False
        if not each.numel():
            continue
        if place is not None and each.data_ptr() != place:
            return False
        place = each.data_ptr() + each.numel() * each.element_size()
    return True


def _disjoint(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no byte of one is one of another; what is no row of bytes is copied anyway."""
    spans = sorted(
        (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size())
        for each in tensors
        if each.numel() and is_as_it_lies(each)
    )
    return all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def movable(tensor: torch.Tensor) -> Element:
    """For moves: any type can be moved."""
    kind = _DTYPES.get(tensor.dtype)
    if kind is None:
        return Element(DType.U8, Op.SUM, tensor.element_size())
    return Element(kind, Op.SUM, 1)


def op_of(value: Any) -> Op | None:
    """The core's operation for a ReduceOp; None for what the core does not do (PREMUL_SUM)."""
    if isinstance(value, dist.ReduceOp.RedOpType):
        value = dist.ReduceOp(value)
    return OPS.get(hash(value))


@functools.cache
def reducible(dtype: torch.dtype, op: Op | None) -> Element | None:
    """For sums; None where the core has no such sum."""
    if op is None:
        return None
    kind = _DTYPES.get(dtype)
    if kind is not None:
        return Element(kind, op, 1) if is_defined(kind, op) else None
    if dtype is torch.bool:  # bytes of 0 and 1: "any" and "all" must stay so
        logical = {Op.SUM: Op.MAX, Op.PROD: Op.MIN, Op.AVG: None}.get(op, op)
        return None if logical is None else Element(DType.U8, logical, 1)
    parts = _COMPLEX.get(dtype)
    return Element(parts, op, 2) if parts is not None and op in (Op.SUM, Op.AVG) else None


# Of every sum but complex ones, by the type and the operation's hash. What is contiguous and has no
# negative bit lies in memory as it is; complex numbers may be conjugated besides.
SUMS_AS_THEY_LIE: Mapping[tuple[torch.dtype, int], Element] = {
    (dtype, number): element
    for dtype in (*_DTYPES, torch.bool)
    for number, op in OPS.items()
    if (element := reducible(dtype, op)) is not None
}
