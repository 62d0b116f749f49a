"""Int8 with a float32 scale before every block of values, as the core's own form between nodes.

A row of n values (n a multiple of the block) is packed as n / block times a scale and a byte for
each value. A block whose values are not all finite comes back as NaN, so an overflow is seen
wherever it is unpacked. Pure functions of tensors, on any device.

Of float32 in host memory the core's kernels pack and unpack. They read and write the same bytes, up
to rounding of a last bit, several times as fast as a chain of torch's operations; ranks that have
no core may be in the same group.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from muster_collectives.binding import library
from muster_collectives.runtime import settings
from muster_collectives.runtime.errors import CoreError

BLOCK = 256  # as the core's
SCALE_BYTES = 4
_LARGEST = 127.0


def packed_bytes(values: int, block: int = BLOCK) -> int:
    """Bytes of a packed row of `values` values."""
    return values // block * SCALE_BYTES + values


def pack(rows: Tensor, block: int = BLOCK) -> Tensor:
    """uint8 [r, packed_bytes(n)] of float32 [r, n]; n is a multiple of `block`.

    Each value is off by half a scale at most, where a scale is the block's largest magnitude / 127.
    """
    count, values = rows.shape
    require_whole(values, block)
    packed = torch.empty(count, packed_bytes(values, block), dtype=torch.uint8, device=rows.device)
    blocks = rows.reshape(count, values // block, block)
    scales = blocks.abs().amax(dim=2, keepdim=True) / _LARGEST
    divisors = torch.where(scales == 0, torch.ones_like(scales), scales)
    steps = (blocks / divisors).round_().clamp_(-_LARGEST, _LARGEST)
    steps = steps.nan_to_num_(nan=0.0)  # the scale says it: 0 x inf is NaN again
    into_scales, into_steps = _parts(packed, values, block)
    into_scales.copy_(scales)
    into_steps.copy_(steps)
    return packed


def unpack(packed: Tensor, values: int, block: int = BLOCK) -> Tensor:
    """float32 [r, values] of uint8 [r, packed_bytes(values)]."""
    scales, steps = _parts(packed, values, block)
    return (steps.float() * scales).view(packed.shape[0], values)


def require_whole(values: int, block: int) -> None:
    """Raises ValueError where a row of `values` values is not of whole blocks."""
    if values % block:
        raise ValueError(f"rows of {values} values are not whole blocks of {block}: pad them")


def _parts(packed: Tensor, values: int, block: int) -> tuple[Tensor, Tensor]:
    """The scales float32 [r, blocks, 1] and the steps int8 [r, blocks, block], as views."""
    each = packed.view(packed.shape[0], values // block, SCALE_BYTES + block)
    return each[:, :, :SCALE_BYTES].view(torch.float32), each[:, :, SCALE_BYTES:].view(torch.int8)


@dataclass(frozen=True)
class CoreBlocks:
    """The core's int8 kernels on tensors. `core`: the loaded library. Tensors are contiguous
    float32 and uint8 in host memory."""

    core: ctypes.CDLL

    def pack(self, rows: Tensor, error: Tensor | None) -> Tensor:
        """uint8 [r, packed bytes] of float32 [r, n], n whole blocks. `error` [r, n] is added before
        and receives what rounding lost, where that is finite."""
        count, values = rows.shape
        require_whole(values, BLOCK)
        packed = torch.empty(count, packed_bytes(values), dtype=torch.uint8, device="cpu")
        lost = error.data_ptr() if error is not None else None
        # rows are whole blocks: all of them are one long row
        self.core.mc_kernel_pack_i8(packed.data_ptr(), rows.data_ptr(), rows.numel(), lost)
        return packed

    def unpack(self, packed: Tensor, values: int) -> Tensor:
        """float32 [r, values]."""
        rows = torch.empty(packed.shape[0], values, dtype=torch.float32, device="cpu")
        self.core.mc_kernel_unpack_i8(rows.data_ptr(), packed.data_ptr(), rows.numel())
        return rows

    def sum(self, packed: Tensor, values: int) -> Tensor:
        """float32 [values]: of all rows, in their order."""
        total = self.unpack(packed[:1], values)[0]
        for row in packed[1:]:
            self.core.mc_kernel_unpack_add_i8(total.data_ptr(), row.data_ptr(), values)
        return total


def of_this_process() -> CoreBlocks | None:
    """None where there is no core."""
    try:
        return CoreBlocks(library.load(settings.current().core))
    except CoreError:
        return None


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels can work on these: contiguous, in host memory."""
    return all(each.device.type == "cpu" and each.is_contiguous() for each in tensors)
