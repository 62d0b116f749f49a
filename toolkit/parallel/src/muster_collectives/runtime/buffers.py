"""From an object with the buffer protocol to an address and a count."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster_collectives.runtime.types import DTYPE_BYTES, DType

# typing has no name for "has the buffer protocol" before 3.12; memoryview() checks it
Buffer = Any

_FORMATS: Mapping[str, DType] = {
    "B": DType.U8, "?": DType.U8, "c": DType.U8, "b": DType.I8, "i": DType.I32, "q": DType.I64,
    "e": DType.F16, "f": DType.F32, "d": DType.F64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Memory of `count` elements. `keep` holds what must live as long as the address is used."""

    address: int
    count: int
    dtype: DType
    keep: object


def span_of(buffer: Buffer, dtype: DType | None, writable: bool, only_moved: bool = False) -> Span:
    """Where `buffer` lies. A `dtype` takes the place of the buffer's own, and the count follows.

    What is read-only is copied, so it can be a source alone. What is `only_moved` may be of any
    type: one that is not known counts as bytes. Raises TypeError, ValueError.
    """
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("it is not C-contiguous")
    if writable and view.readonly:
        raise ValueError("it is read-only")
    kind = dtype if dtype is not None else _dtype_of(view, only_moved)
    count, rest = divmod(view.nbytes, DTYPE_BYTES[kind])
    if rest:
        raise ValueError(f"{view.nbytes} bytes are no whole number of {kind.name} elements")
    if not view.nbytes:
        return Span(0, 0, kind, view)
    # `cast` refuses formats such as those of bool and float16 arrays with more dimensions
    array = ctypes.c_char * view.nbytes
    keep = array.from_buffer_copy(view) if view.readonly else array.from_buffer(view)
    return Span(ctypes.addressof(keep), count, kind, keep)


def _dtype_of(view: memoryview, only_moved: bool) -> DType:
    text = view.format.lstrip("@=<")
    if text in ("l", "L"):
        return DType.I64 if view.itemsize == 8 else DType.I32
    found = _FORMATS.get(text)
    if found is None or DTYPE_BYTES[found] != view.itemsize:
        if only_moved:
            return DType.U8
        raise ValueError(f"its elements ({view.format!r}) are of no type that collectives know")
    return found
