"""Inputs of every element type, and what collectives must make of them, in 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster_collectives.core import DType, Op

Array: TypeAlias = "NDArray[Any]"
FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS = (DType.U8, DType.I8, DType.I32, DType.I64)
BITWISE = (Op.BAND, Op.BOR, Op.BXOR)
POOL = 1 << 18
# memory of an element; bfloat16 has no numpy type, so its bits travel as uint16
MEMORY = {
    DType.U8: np.uint8, DType.I8: np.int8, DType.I32: np.int32, DType.I64: np.int64,
    DType.F16: np.float16, DType.BF16: np.uint16, DType.F32: np.float32, DType.F64: np.float64,
}  # fmt: skip
# unit roundoff of one rounding to the type
_ROUND = {DType.F16: 2.0**-11, DType.BF16: 2.0**-8, DType.F32: 2.0**-24, DType.F64: 2.0**-53}
_SMALLEST = {DType.F16: 2.0**-24, DType.BF16: 2.0**-133, DType.F32: 2.0**-149, DType.F64: 0.0}


def ops_of(dtype: DType) -> tuple[Op, ...]:
    """The operations that are defined for the type."""
    common = (Op.SUM, Op.MIN, Op.MAX, Op.PROD)
    return (*common, Op.AVG) if dtype in FLOATS else (*common, *BITWISE)


class Pool(NamedTuple):
    """Random values of one type; `memory` as a rank holds them, `value` what they mean."""

    memory: Array
    value: Array

    def take(self, rank: int, salt: int, count: int) -> Pool:
        """The input of a rank: a piece that every other rank can name too."""
        start = (rank * 7919 + salt * 10_007) % (POOL - count)
        return Pool(self.memory[start : start + count], self.value[start : start + count])


def pool(dtype: DType, gentle: bool, seed: int) -> Pool:
    """`gentle`: near 1, so that products of many stay finite."""
    chance = np.random.default_rng([seed, int(dtype), int(gentle)])
    if dtype in INTEGERS:
        kind = np.iinfo(MEMORY[dtype])
        whole = chance.integers(kind.min, kind.max, POOL, dtype=MEMORY[dtype], endpoint=True)
        return Pool(whole, whole)
    real = chance.uniform(0.5, 1.5, POOL) if gentle else chance.standard_normal(POOL)
    if dtype == DType.BF16:
        memory: Array = to_bf16(real)
        return Pool(memory, from_bf16(memory))
    memory = real.astype(MEMORY[dtype])
    return Pool(memory, memory.astype(np.float64))


def to_bf16(real: Array) -> NDArray[np.uint16]:
    """Rounded to nearest even; no NaN among them."""
    bits = real.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def from_bf16(memory: Array) -> Array:
    return (memory.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def meaning(dtype: DType, memory: Array) -> Array:
    """The values of what lies in memory."""
    if dtype == DType.BF16:
        return from_bf16(memory)
    return memory if dtype in INTEGERS else memory.astype(np.float64)


def reduced(op: Op, inputs: Sequence[Array]) -> Array:
    """In the inputs' own type: integers wrap, reals are 64 bits wide."""
    stack = np.stack(inputs)
    with np.errstate(over="ignore"):
        match op:
            case Op.SUM:
                return np.add.reduce(stack, dtype=stack.dtype)
            case Op.AVG:
                return np.add.reduce(stack) / len(inputs)
            case Op.PROD:
                return np.multiply.reduce(stack, dtype=stack.dtype)
            case Op.MIN:
                return np.minimum.reduce(stack)
            case Op.MAX:
                return np.maximum.reduce(stack)
            case Op.BAND:
                return np.bitwise_and.reduce(stack)
            case Op.BOR:
                return np.bitwise_or.reduce(stack)
            case _:
                return np.bitwise_xor.reduce(stack)


def wrong(dtype: DType, op: Op, got: Array, inputs: Sequence[Array], roundings: int = 1) -> str:
    """ "" where `got` is the reduction of `inputs`, else the first element that is not.

    Sums of 16-bit types are made in 32 bits and rounded once (`roundings`: once per node more);
    minima, maxima and integers are exact.
    """
    ideal = reduced(op, inputs)
    found = meaning(dtype, got)
    if dtype in INTEGERS or op in (Op.MIN, Op.MAX):
        bad = np.flatnonzero(found != ideal)
    else:
        bad = np.flatnonzero(~(np.abs(found - ideal) <= _room(dtype, op, ideal, inputs, roundings)))
    if not len(bad):
        return ""
    first = bad[0]
    return (
        f"{len(bad)} of {len(ideal)} elements are wrong, the first at {first}: {found[first]!r} "
        f"for {ideal[first]!r} from {[values[first] for values in inputs]}"
    )


def _room(
    dtype: DType, op: Op, ideal: Array, inputs: Sequence[Array], roundings: int
) -> Array:  # fmt: skip
    work = 2.0**-53 if dtype == DType.F64 else 2.0**-24  # of the additions
    steps = len(inputs) + 1
    size = np.abs(ideal) if op == Op.PROD else np.add.reduce(np.abs(np.stack(inputs)))
    if op == Op.AVG:
        size = size / len(inputs)
    rounding: Array = np.abs(ideal) * _ROUND[dtype] * roundings + _SMALLEST[dtype] * roundings
    if roundings > 1:  # a partial result that is rounded may be larger than the whole
        rounding = rounding + size * _ROUND[dtype] * roundings
    return np.asarray(rounding * 1.001 + size * work * steps)
