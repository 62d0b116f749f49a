"""Averages in two levels whose sums stay within the range of a narrow type. Pure.

float16 ends at 65504, which the sum of many ranks passes long before their average does. So what is
summed is scaled before each level, by powers of two: those change no digit of a value, only its
exponent, so that a result that was right without them keeps its bits. Each level scales for its own
ranks alone: values that fall below the normal range (6e-5) lose half a unit of 6e-8 there for each
rank of the node and each node, where scaling for all ranks at once would lose it for each rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from muster_collectives.torch.cuda.layout import NodeLayout


class Factors(NamedTuple):
    """The factors of an average over nodes of different sizes. Each rank's values times `node` are
    summed in the node, those sums times `rail` between the nodes, and what comes out of that is
    divided by `divisor`."""

    node: float
    rail: float
    divisor: float


def factors_of(layout: NodeLayout, dtype: torch.dtype, average: bool, wired: bool) -> Factors:
    """Of a sum (nothing to do) or an average of two levels. `wired`: sums of the nodes travel in a
    narrower form than `dtype`, though they are made in it."""
    if not average:
        return Factors(1.0, 1.0, 1.0)
    node = rail = 1.0
    if dtype == torch.float16:
        node, rail = _power_below(layout.locals), _power_below(layout.nodes)
    elif wired:
        # the exchange sums in float32 and divides before it packs
        rail = _power_below(layout.locals)
    return Factors(node, rail, layout.size * node * rail)


def _power_below(count: int) -> float:
    """The largest power of two that is not above 1 / count."""
    return 0.5 ** (count - 1).bit_length()
