"""Reductions with the standard library alone (pure): the same bits as the core gives, slowly.

Sums are made in the order of the ranks. fp32 rounds after each step, 16-bit floats are summed in
fp32 and rounded once, integers wrap, minima and maxima know -0 < +0 and hand on a NaN.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from muster_collectives.runtime.types import DTYPE_BYTES, FLOATS, DType, Op

Values = Sequence[Any]
_CODES = {
    DType.U8: "B", DType.I8: "b", DType.I32: "i", DType.I64: "q",
    DType.F32: "f", DType.F64: "d",
}  # fmt: skip
_F16_LIMIT = 65520.0  # from here on the nearest is infinity


def reduce_bytes(parts: Sequence[memoryview], dtype: DType, op: Op, divisor: int) -> bytes:
    """parts[0] op parts[1] op ...; the sum is divided by `divisor` where `op` is AVG."""
    if not parts[0].nbytes:
        return b""
    is_single = dtype in (DType.F16, DType.BF16, DType.F32)
    total: Values = unpack(parts[0], dtype)
    step = _step(op, dtype)
    for part in parts[1:]:
        values = map(step, total, unpack(part, dtype))
        if is_single:
            total = array("f", values)
        elif dtype is DType.F64:
            total = array("d", values)
        else:
            total = [_wrap(value, dtype) for value in values]
    if op is Op.AVG:
        # a quotient of two single floats, rounded to double and then to single, is rounded rightly
        total = array("f" if is_single else "d", (value / divisor for value in total))
    return pack(total, dtype)


def unpack(part: memoryview, dtype: DType) -> Values:
    """Numbers of Python; 16-bit floats as fp32."""
    if dtype is DType.F16:
        return struct.unpack(f"={part.nbytes // 2}e", part)
    if dtype is DType.BF16:
        halves = array("H", bytes(part))
        wide = array("I", (half << 16 for half in halves))
        return array("f", wide.tobytes())
    return array(_CODES[dtype], bytes(part))


def pack(values: Iterable[Any], dtype: DType) -> bytes:
    if dtype is DType.F16:
        return b"".join(_half(value) for value in values)
    if dtype is DType.BF16:
        singles = array("f", values)
        words = array("I", singles.tobytes())
        return array("H", map(_bfloat, words, singles)).tobytes()
    return array(_CODES[dtype], values).tobytes()


def _half(value: float) -> bytes:
    if abs(value) >= _F16_LIMIT:  # struct refuses what IEEE makes infinite
        value = math.copysign(math.inf, value)
    return struct.pack("=e", value)


def _bfloat(word: int, value: float) -> int:
    if math.isnan(value):  # rounding could carry a NaN into an infinity
        return (word >> 16) | 0x40
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16 & 0xFFFF


def _wrap(value: int, dtype: DType) -> int:
    bits = DTYPE_BYTES[dtype] * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype is not DType.U8 and value >> (bits - 1) else value


def _step(op: Op, dtype: DType) -> Callable[[Any, Any], Any]:
    if op in (Op.SUM, Op.AVG):
        return lambda a, b: a + b
    if op is Op.PROD:
        return lambda a, b: a * b
    if op is Op.MIN:
        return _least if dtype in FLOATS else min
    if op is Op.MAX:
        return _most if dtype in FLOATS else max
    return {
        Op.BAND: lambda a, b: a & b,
        Op.BOR: lambda a, b: a | b,
        Op.BXOR: lambda a, b: a ^ b,
    }[op]


def _least(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    if a == b:
        return a if math.copysign(1.0, a) < 0 else b
    return min(a, b)


def _most(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    if a == b:
        return b if math.copysign(1.0, a) < 0 else a
    return max(a, b)
