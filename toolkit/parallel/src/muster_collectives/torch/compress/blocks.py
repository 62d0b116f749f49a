"""Int8 with a float32 scale for every block of values. Pure functions of tensors, on any device.

A row of n values (n a multiple of the block) is packed as n / block scales, then n bytes. A block
whose values are not all finite comes back as NaN, so an overflow is seen wherever it is unpacked.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256  # as the core's between nodes
_LARGEST = 127.0


def packed_bytes(values: int, block: int = BLOCK) -> int:
    """Bytes of a packed row of `values` values."""
    return values // block * 4 + values


def pack(rows: Tensor, block: int = BLOCK) -> Tensor:
    """uint8 [r, packed_bytes(n)] of float32 [r, n]; n is a multiple of `block`.

    Each value is off by half a scale at most, where a scale is the block's largest magnitude / 127.
    """
    count, values = rows.shape
    if values % block:
        raise ValueError(f"rows of {values} values are not whole blocks of {block}: pad them")
    scales_bytes = values // block * 4
    packed = torch.empty(count, packed_bytes(values, block), dtype=torch.uint8, device=rows.device)
    blocks = rows.reshape(count, values // block, block)
    scales = blocks.abs().amax(dim=2) / _LARGEST
    divisors = torch.where(scales == 0, torch.ones_like(scales), scales).unsqueeze(2)
    steps = (blocks / divisors).round_().clamp_(-_LARGEST, _LARGEST)
    steps = steps.nan_to_num_(nan=0.0)  # the scale says it: 0 x inf is NaN again
    packed[:, :scales_bytes].view(torch.float32).copy_(scales)
    packed[:, scales_bytes:].view(torch.int8).copy_(steps.view(count, values))
    return packed


def unpack(packed: Tensor, values: int, block: int = BLOCK) -> Tensor:
    """float32 [r, values] of uint8 [r, packed_bytes(values)]."""
    count, scales_bytes = packed.shape[0], values // block * 4
    scales = packed[:, :scales_bytes].view(torch.float32)
    steps = packed[:, scales_bytes:].view(torch.int8).view(count, values // block, block)
    return (steps.float() * scales.unsqueeze(2)).view(count, values)
