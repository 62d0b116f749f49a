"""In what form float32 values travel: as half floats, or as int8 with block scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from muster_collectives.torch.compress import blocks, core_blocks

NAMES = ("same", "fp16", "bf16", "int8")


class WireFormat(Protocol):
    """Rows of float32 values to what is sent, and back. `grain`: a row is a multiple of it."""

    @property
    def grain(self) -> int: ...

    def pack(self, rows: Tensor, error: Tensor | None = None) -> Tensor:
        """[r, ...] of float32 [r, n]. `error` [r, n] is added before, and receives what rounding
        lost, 0 where that is not finite."""

    def unpack(self, packed: Tensor, values: int) -> Tensor:
        """float32 [r, values]."""

    def sum(self, packed: Tensor, values: int) -> Tensor:
        """float32 [values]: of all rows, in their order."""


@dataclass(frozen=True)
class HalfWire:
    """fp16 or bf16: half the bytes. fp16 overflows beyond 65504, which all ranks then see."""

    dtype: torch.dtype
    grain: int = 1

    def pack(self, rows: Tensor, error: Tensor | None = None) -> Tensor:
        return _keeping(rows, error, lambda both: both.to(self.dtype), torch.Tensor.float)

    def unpack(self, packed: Tensor, values: int) -> Tensor:
        del values
        return packed.float()

    def sum(self, packed: Tensor, values: int) -> Tensor:
        return self.unpack(packed, values).sum(dim=0)


@dataclass(frozen=True)
class BlockWire:
    """Int8 in blocks: 3.9 times fewer bytes. Use it with error feedback. `kernels`: the core's for
    blocks of its size in host memory; None leaves everything to torch's operations."""

    grain: int = blocks.BLOCK
    kernels: core_blocks.CoreBlocks | None = field(default_factory=core_blocks.of_this_process)

    def pack(self, rows: Tensor, error: Tensor | None = None) -> Tensor:
        kernels = self._kernels(rows) if error is None else self._kernels(rows, error)
        if kernels is not None:
            return kernels.pack(rows, error)
        return _keeping(
            rows, error, lambda both: blocks.pack(both, self.grain),
            lambda packed: blocks.unpack(packed, rows.shape[1], self.grain),
        )  # fmt: skip

    def unpack(self, packed: Tensor, values: int) -> Tensor:
        kernels = self._kernels(packed)
        if kernels is not None:
            return kernels.unpack(packed, values)
        return blocks.unpack(packed, values, self.grain)

    def sum(self, packed: Tensor, values: int) -> Tensor:
        kernels = self._kernels(packed)
        if kernels is not None:
            return kernels.sum(packed, values)
        return blocks.unpack(packed, values, self.grain).sum(dim=0)

    def _kernels(self, *tensors: Tensor) -> core_blocks.CoreBlocks | None:
        fits = self.grain == blocks.BLOCK and core_blocks.fits(*tensors)
        return self.kernels if fits else None


def _keeping(
    rows: Tensor, error: Tensor | None, pack: Callable[[Tensor], Tensor],
    unpack: Callable[[Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """What `pack` makes of the rows and their error, which becomes what of them is lost."""
    if error is None:
        return pack(rows)
    both = rows + error
    packed = pack(both)
    error.copy_(finite_(both.sub_(unpack(packed))))
    return packed


def finite_(error: torch.Tensor) -> torch.Tensor:
    """The error itself with 0 for what is not finite: an infinity that is kept makes every later
    step one."""
    return error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def wire_of(name: str) -> WireFormat | None:
    """None for "same". Raises ValueError for a name that is not in NAMES."""
    if name == "same":
        return None
    if name == "int8":
        return BlockWire()
    if name in ("fp16", "bf16"):
        return HalfWire(torch.float16 if name == "fp16" else torch.bfloat16)
    raise ValueError(f"wire {name!r} is none of {', '.join(NAMES)}")
