"""Tensors as bytes and back, without a copy and without numpy."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from muster_parameter_server.errors import SettingsError
from muster_parameter_server.layout import Segment, TensorSpec
from muster_parameter_server.wire.frames import DTYPES

if sys.byteorder != "little":
    raise ImportError("muster_parameter_server sends tensors little-endian; this machine is not")

TORCH: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
LABEL_LIMIT = 120  # characters of a name that travel
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH.items()}


def spec_of(tensor: Tensor, number: int, group: int, label: str = "") -> TensorSpec:
    """Raises SettingsError for a tensor that cannot travel."""
    name = NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided:
        raise SettingsError(
            f"tensor {number} {label} is {tensor.layout} {tensor.dtype}".replace("  ", " "),
            f"parameters are dense and of {', '.join(DTYPES)}",
        )
    return TensorSpec(name, tuple(tensor.shape), group, label[-LABEL_LIMIT:])


def is_plain(tensor: Tensor) -> bool:
    """Whether its bytes lie in this machine's memory in row-major order."""
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous())


def view(tensor: Tensor, start: int = 0, stop: int | None = None) -> memoryview:
    """The bytes of elements `start` to `stop` of a plain tensor, shared and writable.

    The caller keeps the tensor alive for as long as the view. Raises IndexError for elements that
    the tensor, or the memory below it, does not have.
    """
    size = tensor.element_size()
    stop = tensor.numel() if stop is None else stop
    length = (stop - start) * size
    room = tensor.untyped_storage().nbytes() // size - tensor.storage_offset()
    if not 0 <= start <= stop <= min(tensor.numel(), room) or not is_plain(tensor):
        raise IndexError(f"elements {start} to {stop} of a tensor {tuple(tensor.shape)}")
    if not length:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * length).from_address(tensor.data_ptr() + start * size)
    return memoryview(memory).cast("B")


def pieces(tensors: Sequence[Tensor], segment: Segment) -> list[memoryview]:
    """The bytes of a segment where they lie in plain tensors, in the segment's order."""
    return [view(tensors[piece.tensor], piece.start, piece.stop) for piece in segment.pieces]
