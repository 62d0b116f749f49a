"""Int8 with a float32 scale before every block of values, as the core's own form between nodes.

A row of n values (n a multiple of the block) is packed as n / block times a scale and a byte for
each value. A block whose values are not all finite comes back as NaN, so an overflow is seen
wherever it is unpacked. Pure functions of tensors, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
