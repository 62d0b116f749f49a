"""What the tests of the collective core's kernels stand on: guarded memory, and the reference.

The reference is the standard library's numbers: `ctypes` rounds to fp32, `struct` to fp16, both to
nearest even; a sum or product of two fp32 numbers is exact enough in fp64 to be rounded once more.
"""

from __future__ import annotations

import ctypes
import math
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

GUARD = b"\xa5" * 64

# As in muster_core.h, in its order.
DTYPES = ("u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64")
OPS = ("sum", "avg", "min", "max", "prod", "band", "bor", "bxor")
BYTES = {"u8": 1, "i8": 1, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
FLOATS = ("f16", "bf16", "f32", "f64")
DEFINED = [
    (dtype, op)
    for dtype, op in product(DTYPES, OPS)
    if op in ("sum", "min", "max", "prod") or (op == "avg") == (dtype in FLOATS)
]


# mc_reduce_fn of kernels/kernels.h
_REDUCER = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint,
    ctypes.c_size_t, ctypes.c_double,
)  # fmt: skip


class Memory:
    """Bytes at an address `shift` off a multiple of 64, with a guard on either side."""

    def __init__(self, content: bytes, shift: int = 0) -> None:
        self.room = ctypes.create_string_buffer(len(content) + 2 * len(GUARD) + 128)
        self.at = -(-(ctypes.addressof(self.room) + len(GUARD)) // 64) * 64 + shift
        self.size = len(content)
        ctypes.memmove(self.at - len(GUARD), GUARD + content + GUARD, self.size + 2 * len(GUARD))

    def read(self) -> bytes:
        everything = ctypes.string_at(self.at - len(GUARD), self.size + 2 * len(GUARD))
        assert everything.startswith(GUARD), "written in front of the buffer"
        assert everything.endswith(GUARD), "written behind the buffer"
        return everything[len(GUARD) : -len(GUARD)]


def reduce(
    core: ctypes.CDLL,
    dtype: str,
    op: str,
    sources: Sequence[bytes],
    *,
    shift: int = 0,
    into: int | None = None,
    twice: bool = False,
    divisor: float = 1.0,
) -> bytes:
    """`into`: the source that is the target as well; `twice`: into a second target too."""
    read = [Memory(source, (shift * (i + 1)) % 64) for i, source in enumerate(sources)]
    target = Memory(b"\x5a" * len(sources[0]), shift) if into is None else read[into]
    second = Memory(b"\x5a" * len(sources[0]), shift) if twice else None
    kernel = _REDUCER(core.mc_reducer(DTYPES.index(dtype), OPS.index(op)))
    kernel(
        target.at, second.at if second else None,
        (ctypes.c_void_p * len(read))(*(each.at for each in read)), len(read),
        len(sources[0]) // BYTES[dtype], divisor,
    )  # fmt: skip
    for i, each in enumerate(read):
        assert i == into or each.read() == sources[i], "a source was written"
    assert second is None or second.read() == target.read()
    return target.read()


# --- the reference: the standard library's numbers


def f32(value: float) -> float:
    return ctypes.c_float(value).value


def f32_bits(value: float) -> int:
    return ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value


def to_f16(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, value))


def to_bf16(value: float) -> bytes:
    bits = f32_bits(value)
    if math.isnan(value):
        return struct.pack("<H", bits >> 16 | 0x40)
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)


def encode(dtype: str, values: Iterable[Any]) -> bytes:
    form: dict[str, Callable[[Any], bytes]] = {
        "f16": to_f16,
        "bf16": to_bf16,
        "f32": lambda value: bytes(ctypes.c_float(value)),
        "f64": lambda value: struct.pack("<d", value),
    }
    size = BYTES[dtype]
    wrapped = lambda value: (value % (1 << 8 * size)).to_bytes(size, "little")  # noqa: E731
    return b"".join(map(form.get(dtype, wrapped), values))


def decode(dtype: str, data: bytes) -> list[Any]:
    if dtype == "bf16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        dtype = "f32"
    codes = {"u8": "B", "i8": "b", "i32": "i", "i64": "q", "f16": "e", "f32": "f", "f64": "d"}
    return [value for (value,) in struct.iter_unpack("<" + codes[dtype], data)]


def pick(op: str, a: Any, b: Any) -> Any:
    """Minimum and maximum: the first NaN wins, and -0 is below +0."""
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    ordered = sorted((a, b), key=lambda value: (value, math.copysign(1, value)))
    return ordered[0 if op == "min" else 1]


def expected(dtype: str, op: str, columns: Sequence[Sequence[Any]], divisor: float) -> bytes:
    near = f32 if dtype in ("f16", "bf16", "f32") else (lambda value: value)
    combine: dict[str, Callable[[Any, Any], Any]] = {
        "sum": lambda a, b: near(a + b),
        "avg": lambda a, b: near(a + b),
        "prod": lambda a, b: near(a * b),
        "min": lambda a, b: pick("min", a, b),
        "max": lambda a, b: pick("max", a, b),
        "band": lambda a, b: a & b,
        "bor": lambda a, b: a | b,
        "bxor": lambda a, b: a ^ b,
    }
    values = []
    for row in zip(*columns, strict=True):
        value = row[0]
        for other in row[1:]:
            value = combine[op](value, other)
        values.append(near(value / near(divisor)) if op == "avg" else value)
    return encode(dtype, values)


def assert_same(dtype: str, got: bytes, want: bytes, what: object) -> None:
    """Bit for bit, but for what kind of NaN a NaN is."""
    if got == want:
        return
    size = BYTES[dtype]
    pairs = zip(decode(dtype, got), decode(dtype, want), strict=True)
    for i, (one, two) in enumerate(pairs):
        here = slice(i * size, i * size + size)
        both_nan = math.isnan(one) and math.isnan(two)
        assert got[here] == want[here] or both_nan, (what, i, one, two)


def borders(dtype: str) -> list[Any]:
    """Where arithmetic has an edge."""
    if dtype in FLOATS:
        tiny = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 5e-324}[dtype]
        return [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, tiny, -tiny, 65504.0, 3e38]
    return [0, 1, 2, 127, 128, 255, -1, -128, -(2**31), 2**31 - 1, -(2**63)]


def border_pairs(dtype: str) -> list[bytes]:
    """Each border with each, both ways round."""
    pairs = list(product(borders(dtype), repeat=2))
    return [encode(dtype, (pair[side] for pair in pairs)) for side in (0, 1)]


def interesting(dtype: str, seed: int) -> bytes:
    """Any bits, likely numbers, and the borders: in an order of its own for each seed."""
    rng = random.Random(seed)
    usual: list[Any] = [rng.randrange(-100, 100) for _ in range(20)]
    if dtype in FLOATS:
        usual = [rng.gauss(0, 3) for _ in range(20)]
    data = encode(dtype, borders(dtype) * 3 + usual) + rng.randbytes(20 * BYTES[dtype])
    parts = [data[i : i + BYTES[dtype]] for i in range(0, len(data), BYTES[dtype])]
    rng.shuffle(parts)
    return b"".join(parts)
