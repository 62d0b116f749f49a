"""What of a host's output reaches its screen; the record has all of it in any case."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.plain import whole_number
from muster.types.values import NamedTuple

LAST = "last"

# What `train` writes before the block of a failure or a stop where `muster local` reads it: text
# alone could be a script's. A terminal shows none of it.
BLOCK_MARK = "\x1e\x1f\x1e"


class ShownRanks(NamedTuple):
    """Numbers of ranks as ranges with both ends; an end of None is the last rank of the job."""

    ranges: tuple[tuple[int | None, int | None], ...]

    def has(self, rank: int, world_size: int) -> bool:
        last = world_size - 1
        return any(
            (last if first is None else first) <= rank <= (last if end is None else end)
            for first, end in self.ranges
        )


class Shown(NamedTuple):
    """How the output of ranks and launchers appears on the screen.

    `prefix`: `[host:rank] ` before every line. `quiet`: neither INFO nor what launchers say.
    `live`: of a line that carriage returns write anew only how it stands. `ranks`: None for all.
    """

    prefix: bool = False
    quiet: bool = False
    live: bool = False
    ranks: ShownRanks | None = None


def parse_ranks(text: str) -> ShownRanks:
    """`0,last`, `0-3`, `4-last`: numbers, ranges and the word last. Raises ValueError."""
    ranges = []
    for item in text.split(","):
        first, dash, end = item.strip().partition("-")
        ranges.append((_end(first), _end(end if dash else first)))
    return ShownRanks(tuple(ranges))


def _end(text: str) -> int | None:
    text = text.strip()
    if text == LAST:
        return None
    number = whole_number(text)
    if number is None:
        raise ValueError(f"expected numbers of ranks, ranges or {LAST}, got {text!r}")
    return number


def mark_of(environ: Mapping[str, str]) -> str:
    """What comes before a host's last block: nothing unless its reader asked for it."""
    return BLOCK_MARK if environ.get("MUSTER_LIVE") == "1" else ""
