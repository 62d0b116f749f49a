"""What a host tells the leader of its ranks when they have ended: a few figures of each.

It goes with `HostEnded`, is bounded, and nothing depends on it but the summary of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from muster.types.values import NamedTuple

DIGEST_BYTES = 8 << 10  # of JSON, of one host
_MOST = 1 << 63


class RankFigures(NamedTuple):
    """What was seen of one rank; None where it is not known.

    `cpu_s`: processor time of its process tree. `peak_memory_bytes`: the most that was resident at
    once. `steps`, `rate`: what its script reported, and steps per second. `waits_s`: how long it
    waited for other ranks.
    """

    rank: int
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    steps: int | None = None
    rate: float | None = None
    waits_s: float | None = None


class HostDigest(NamedTuple):
    """The figures of a host's ranks. `left_out`: ranks that had no room."""

    ranks: tuple[RankFigures, ...]
    left_out: int = 0


def fitting(digest: HostDigest, limit_bytes: int = DIGEST_BYTES) -> HostDigest:
    """The digest, rounded and without figures that cannot be, as far as it takes that many bytes of
    JSON. Where that is not all, the ranks that stand out in a figure stay, those of each figure in
    turn; at worst none does."""
    ranks = tuple(RankFigures(*map(_sent, one)) for one in digest.ranks)
    room = limit_bytes - len(_json(HostDigest((), digest.left_out + len(ranks))))
    sizes = [len(_json(one)) + 1 for one in ranks]
    if sum(sizes) <= room:
        return digest._replace(ranks=ranks)
    kept = []
    for index in _telling(ranks):
        if sizes[index] <= room:
            room -= sizes[index]
            kept.append(index)
    left_out = digest.left_out + len(ranks) - len(kept)
    return HostDigest(tuple(ranks[index] for index in sorted(kept)), left_out)


def digest_from_json(value: Any) -> HostDigest:
    """A digest of JSON. Raises TypeError or ValueError for anything else."""
    ranks, left_out = value
    if not isinstance(ranks, list):
        raise TypeError("ranks that are no list")
    made = tuple(RankFigures(*one) for one in ranks)
    if not is_number(left_out, int) or not all(map(_is_sane, made)):
        raise ValueError("figures that cannot be")
    if len({one.rank for one in made}) < len(made):
        raise ValueError("a rank twice")
    return HostDigest(made, left_out)


def _is_sane(figures: RankFigures) -> bool:
    counts = (figures.peak_memory_bytes, figures.steps)
    times = (figures.cpu_s, figures.rate, figures.waits_s)
    return (
        is_number(figures.rank, int)
        and all(one is None or is_number(one, int) for one in counts)
        and all(one is None or is_number(one, int, float) for one in times)
    )


def is_number(value: object, *types: type) -> bool:
    """Of a type of these, which bool is not, and neither negative nor infinite."""
    return type(value) in types and 0 <= value < _MOST  # type: ignore[operator]


def _sent(value: Any) -> Any:
    """Rounded; None for what the leader would not take."""
    if not is_number(value, int, float):
        return None
    return round(value, 3) if type(value) is float else value


def _telling(ranks: Sequence[RankFigures]) -> list[int]:
    """All places in `ranks`: by turns the least and the most of each figure."""
    orders: list[list[int]] = []
    for figure in range(1, len(RankFigures._fields)):
        known = [index for index, one in enumerate(ranks) if one[figure] is not None]
        rising = sorted(known, key=lambda index: ranks[index][figure] or 0)
        orders += [rising, rising[::-1]]
    orders.append(list(range(len(ranks))))
    turns = (order[turn] for turn in range(len(ranks)) for order in orders if turn < len(order))
    return list(dict.fromkeys(turns))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
