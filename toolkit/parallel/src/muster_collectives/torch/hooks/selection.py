"""The k largest magnitudes of a vector, found through a sample; the same input, the same choice."""

from __future__ import annotations

import torch
from torch import Tensor

_SAMPLED_FROM = 1 << 16  # shorter vectors are sorted as they are
_SAMPLE = 1 << 14


def largest(values: Tensor, count: int) -> Tensor:
    """int64 indices, at most `count`, without order, of values that are among the largest.

    Exact for short vectors. For long ones a threshold is guessed from every n-th value (Lin et al.
    2018, 3.1 sample too): never more than `count`, sometimes a few fewer. NaN counts as largest.
    """
    magnitudes = values.abs()
    if values.numel() <= max(_SAMPLED_FROM, count * 4):
        return torch.topk(magnitudes, min(count, values.numel()), sorted=False).indices
    sample = magnitudes[:: max(1, values.numel() // _SAMPLE)]
    # somewhat more than wanted, of which the exact choice is then made
    wanted = min(sample.numel(), max(1, int(1.3 * count * sample.numel() / values.numel()) + 2))
    threshold = torch.topk(sample, wanted, sorted=True).values[-1]
    found = (~(magnitudes < threshold)).nonzero().view(-1)
    if found.numel() * 4 < count * 3:  # the sample misled
        return torch.topk(magnitudes, count, sorted=False).indices
    if found.numel() <= count:
        return found
    return found[torch.topk(magnitudes[found], count, sorted=False).indices]
