"""Numpy arrays through the core: one call for all arrays of a type. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from muster_collectives.binding.communicator import Communicator
from muster_collectives.runtime.types import DTYPE_NAMES, FLOATS, DType, Op, ReduceOp

Array = Any  # np.ndarray of any element type


# By the names of numpy's element types; bfloat16 is a type that TensorFlow adds to numpy.
_TYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_OPS = {
    ReduceOp.SUM: Op.SUM, ReduceOp.MIN: Op.MIN, ReduceOp.MAX: Op.MAX, ReduceOp.AVERAGE: Op.AVG,
}  # fmt: skip


def reduce_arrays(
    world: Communicator, arrays: Sequence[Array], op: ReduceOp, fused_bytes: int = 64 << 20
) -> list[Array]:
    """The reduction of each array over all ranks, as new arrays of the same shapes and types.

    Arrays of one type travel together, up to `fused_bytes` at a time. An average of integers is
    made in 64 bits and rounded down. Raises TypeError for a type that cannot be reduced.
    """
    results: list[Array] = [None] * len(arrays)
    for name, indices in _by_type(arrays).items():
        whole = op is ReduceOp.AVERAGE and _TYPES[name] not in FLOATS
        width = 8 if whole else np.dtype(arrays[indices[0]].dtype).itemsize
        for batch in _batches([(each, arrays[each].size * width) for each in indices], fused_bytes):
            flat = np.concatenate([arrays[each].reshape(-1) for each in batch])
            flat = _averaged(world, flat) if whole else _reduced(world, flat, _TYPES[name], op)
            begin = 0
            for each in batch:
                end = begin + arrays[each].size
                results[each] = flat[begin:end].reshape(arrays[each].shape)
                begin = end
    return results


def broadcast_arrays(world: Communicator, arrays: Sequence[Array], root: int) -> list[Array]:
    """The root's arrays, on all ranks; of any fixed-size type."""
    results = []
    for array in arrays:
        copy = np.array(array, copy=True, order="C")
        if copy.dtype.hasobject:
            raise TypeError(f"elements of type {copy.dtype} cannot be broadcast: numbers can")
        if copy.size:
            world.broadcast(copy.reshape(-1).view(np.uint8), root)
        results.append(copy)
    return results


def _by_type(arrays: Sequence[Array]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, array in enumerate(arrays):
        name = array.dtype.name
        if name not in _TYPES:
            raise TypeError(f"a tensor of {name} cannot be reduced: cast it to one of "
                            f"{', '.join(_TYPES)}")  # fmt: skip
        found.setdefault(name, []).append(index)
    return found


def _batches(items: Sequence[tuple[int, int]], limit_bytes: int) -> list[list[int]]:
    batches: list[list[int]] = []
    filled = 0
    for index, bytes_ in items:
        if not batches or filled + bytes_ > limit_bytes:
            batches.append([])
            filled = 0
        batches[-1].append(index)
        filled += bytes_
    return batches


def _reduced(world: Communicator, flat: Array, dtype: DType, op: ReduceOp) -> Array:
    if flat.size:
        world.all_reduce(flat.view(np.uint8), _OPS[op], dtype)  # numpy has no buffer of bfloat16
    return flat


def _averaged(world: Communicator, flat: Array) -> Array:
    """Of integers: in 64 bits, since a sum has more digits than its average."""
    wide = _reduced(world, flat.astype(np.int64), DType.I64, ReduceOp.SUM)
    np.floor_divide(wide, world.size, out=wide)
    return wide.astype(flat.dtype)
