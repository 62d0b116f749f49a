"""A sum over ranks in which every value is rounded twice at most, however many ranks there are.

Each rank owns a part. All send it their parts (rounded once), it sums them in float32 in the order
of ranks, and all get the sum (rounded a second time), the owner too: identical bits everywhere.
As many bytes as a ring. (ZeRO++ of Wang et al. 2023 has the same all-to-all form.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from muster_collectives.torch.compress import group_calls
from muster_collectives.torch.compress.wires import WireFormat, finite_


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
