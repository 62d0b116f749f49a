"""What c10d passes, in one form; torch's types as the core's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.types import DType, Op

__all__ = [
    "DTYPES",
    "OPS",
    "Arguments",
    "Row",
    "canonical",
    "complex_parts",
    "op_of",
    "timeout_of",
]

DTYPES: Mapping[torch.dtype, DType] = {
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
}
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
_COMPLEX: Mapping[torch.dtype, DType] = {torch.complex64: DType.F32, torch.complex128: DType.F64}


def complex_parts(dtype: torch.dtype) -> DType | None:
    """The type of the two numbers that an element of a complex `dtype` is made of."""
    return _COMPLEX.get(dtype)


def op_of(value: Any) -> Op | None:
    """The core's operation for a ReduceOp; None for what the core does not do (PREMUL_SUM)."""
    if isinstance(value, dist.ReduceOp.RedOpType):
        value = dist.ReduceOp(value)
    return OPS.get(hash(value))


def timeout_of(options: Any) -> float | None:
    """Seconds; None where the options leave it to the group (c10d writes -1 ms there)."""
    timeout: timedelta = options.timeout
    return None if timeout.days < 0 else timeout.total_seconds()


@dataclass(frozen=True)
class Row:
    """One verb of c10d. `spellings`: the names of 2.13 first, then those of older versions.

    `levels`: for each tensor argument how deep its lists are; -1 is a list of numbers. `extras`:
    what the short form of the call (without an options object) has after the tensors.
    """

    spellings: tuple[str, ...]
    levels: tuple[int, ...]
    options: type[Any]
    extras: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.spellings[0]


@dataclass(frozen=True)
class Arguments:
    """A call in its long form: lists as deep as c10d wants them, and an options object."""

    tensors: tuple[Any, ...]
    options: Any


_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def canonical(row: Row, args: Sequence[Any], named: Mapping[str, Any]) -> Arguments:
    """The long form of any form that the methods of a c10d group take. Raises TypeError."""
    settings = {key: value for key, value in named.items() if key in ("opts", *row.extras)}
    values = [*args, *(value for key, value in named.items() if key not in settings)]
    count = len(row.levels)
    if len(values) < count:
        raise TypeError(f"{row.name} takes {count} tensor arguments, {len(values)} were given")
    tensors = tuple(_nested(value, level) for value, level in zip(values, row.levels, strict=False))
    rest = values[count:]
    if rest and hasattr(rest[0], "timeout"):  # an options object, whatever its class
        return Arguments(tensors, rest[0])
    if rest and rest[0] is None and len(rest) == 1:
        rest = []
    if len(rest) > len(row.extras):
        raise TypeError(f"{row.name} takes at most {len(row.extras)} arguments after the tensors")
    options = settings.pop("opts", None)
    if options is not None:
        return Arguments(tensors, options)
    options = row.options()
    for key, value in (*zip(row.extras, rest, strict=False), *settings.items()):
        if value is not None:
            wrapped = dist.ReduceOp(value) if key == "op" else value
            setattr(options, _FIELDS[key], wrapped)
    return Arguments(tensors, options)


def _nested(value: Any, level: int) -> Any:
    """`value` in as many lists as c10d's long form has."""
    if level < 0:
        return list(value)
    depth, inner = 0, value
    while isinstance(inner, list | tuple):
        depth += 1
        if not inner:
            return list(value)
        inner = inner[0]
    for _ in range(level - depth):
        value = [value]
    return value
