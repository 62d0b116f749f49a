"""Whether a virtual machine had its processors: the time that its host gave to others."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # of the words after `cpu`: idle, and waiting for disks (proc(5))
_STOLEN = 7
_COUNTED = 8  # what follows is time of guests, which stands in user time already


class Times(NamedTuple):
    """Ticks of all processors since the start: `wanted` by this machine, of it `stolen`."""

    wanted: int
    stolen: int


def read_times(stat: Path = _STAT) -> Times | None:
    """None where the kernel does not say."""
    try:
        words = stat.read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    if len(words) < _COUNTED:
        return None
    ticks = [int(word) for word in words[:_COUNTED]]
    return Times(sum(ticks) - sum(ticks[at] for at in _IDLE), ticks[_STOLEN])


def stolen_percent(before: Times | None, after: Times | None) -> float | None:
    """Of the time that was wanted between the two. None where that is not known."""
    if before is None or after is None:
        return None
    wanted = after.wanted - before.wanted
    return round(100 * (after.stolen - before.stolen) / wanted, 1) if wanted > 0 else 0.0
