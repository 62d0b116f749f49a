"""In what form float32 values travel (as half floats, or as int8 with block scales), and a sum over
ranks in which every value is rounded twice at most, however many ranks there are.

Each rank owns a part. All send it their parts (rounded once), it sums them in float32 in the order
of ranks, and all get the sum (rounded a second time), the owner too: identical bits everywhere.
As many bytes as a ring. (ZeRO++ of Wang et al. 2023 has the same all-to-all form.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from muster_collectives.torch.compress import blocks, group_calls

NAMES = ("same", "fp16", "bf16", "int8")


@dataclass(frozen=True)
class HalfWire:
    """fp16 or bf16: half the bytes. fp16 overflows beyond 65504, which all ranks then see. `grain`:
    a row is a multiple of it."""

    dtype: torch.dtype
    grain: int = 1

    def pack(self, rows: Tensor, error: Tensor | None = None) -> Tensor:
        """[r, ...] of float32 [r, n]. `error` [r, n] is added before, and receives what rounding
        lost, 0 where that is not finite."""
        return _keeping(rows, error, lambda both: both.to(self.dtype), torch.Tensor.float)

    def unpack(self, packed: Tensor, values: int) -> Tensor:
        """float32 [r, values]."""
        del values
        return packed.float()

    def sum(self, packed: Tensor, values: int) -> Tensor:
        """float32 [values]: of all rows, in their order."""
        return self.unpack(packed, values).sum(dim=0)


@dataclass(frozen=True)
class BlockWire:
    """The same for int8 in blocks: 3.9 times fewer bytes. Use it with error feedback. `kernels`:
    the core's for blocks of its size in host memory; None leaves everything to torch's
    operations."""

    grain: int = blocks.BLOCK
    kernels: blocks.CoreBlocks | None = field(default_factory=blocks.of_this_process)

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

    def _kernels(self, *tensors: Tensor) -> blocks.CoreBlocks | None:
        fits = self.grain == blocks.BLOCK and blocks.fits(*tensors)
        return self.kernels if fits else None


# rows of float32 values to what is sent, and back
WireFormat = HalfWire | BlockWire


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


def padded_part(count: int, ranks: int, grain: int) -> int:
    """Values of each rank's part so that `ranks` parts of whole grains hold `count` values."""
    per_rank = -(-count // ranks)
    return -(-per_rank // grain) * grain


def sum_over(
    group: group_calls.Group, rank: int, ranks: int, values: Tensor, wire: WireFormat,
    error: Tensor | None = None, scale: float = 1.0,
) -> None:  # fmt: skip
    """`values` (float32, contiguous, 1-d) becomes `scale` times the sum over all ranks. The sum is
    scaled before it is rounded, so that an average is never beyond a form that can hold it.

    `error`, of the same length, is added before and receives what both roundings lost (Karimireddy
    et al. 2019): hand in the same one for the same vector next time, zeros at first. What is not
    finite is not kept.
    """
    count = values.numel()
    part = padded_part(count, ranks, wire.grain)
    kept = _rows(error, ranks, part) if error is not None else None
    packed = wire.pack(_rows(values, ranks, part), kept)
    received = torch.empty_like(packed)
    group_calls.all_to_all(group, received, packed).wait()
    own = wire.sum(received, part)
    if scale != 1.0:
        own.mul_(scale)
    lost = torch.zeros_like(own) if kept is not None else None
    second = wire.pack(own.view(1, part), lost.view(1, part) if lost is not None else None)
    if error is not None and kept is not None and lost is not None:
        # the owner adds what the sum lost to what it sends next time, in the measure of what is
        # sent: it counts once in the next sum
        kept[rank] += finite_(lost.div_(scale))
        if kept.data_ptr() != error.data_ptr():
            error.copy_(kept.view(-1)[:count])
    gathered = torch.empty_like(packed)
    group_calls.all_gather(group, gathered, second).wait()
    values.copy_(wire.unpack(gathered, part).view(-1)[:count])


def reduce_scatter_over(
    group: group_calls.Group, rows: Tensor, output: Tensor, wire: WireFormat
) -> None:
    """`output` (float32 [n]) becomes the sum over ranks of their row for this rank; rows [r, n].

    Every value is rounded once.
    """
    count = output.numel()
    part = padded_part(count, 1, wire.grain)
    if part != count:
        rows = torch.nn.functional.pad(rows, (0, part - count))
    packed = wire.pack(rows.contiguous())
    received = torch.empty_like(packed)
    group_calls.all_to_all(group, received, packed).wait()
    output.copy_(wire.sum(received, part)[:count])


def _rows(values: Tensor, ranks: int, part: int) -> Tensor:
    """[ranks, part] of a vector: itself where it is as long, else a copy that ends with zeros."""
    missing = ranks * part - values.numel()
    whole = torch.nn.functional.pad(values, (0, missing)) if missing else values
    return whole.view(ranks, part)
