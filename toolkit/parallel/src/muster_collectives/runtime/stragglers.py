"""One log line a minute when one rank of the node holds the others up (reliability F36)."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

PERIOD_S = 60.0
LEAST_FACTOR = 1.25  # below, it is jitter
_FAR_LONGER = 4.0
_log = logging.getLogger("muster_collectives")


class SlowRank(NamedTuple):
    """The rank that held up its node. `factor`: how much shorter the time would have been without
    waiting for `rank`."""

    rank: int
    factor: float


def find(waited_s: Mapping[int, float], period_s: float) -> SlowRank | None:
    """Who was waited for far longer than the others in the last `period_s` (pure).

    `waited_s` is by rank, without this one.
    """
    if not waited_s or period_s <= 0:
        return None
    rank = max(sorted(waited_s), key=lambda each: waited_s[each])
    worst = min(waited_s[rank], period_s * 0.999)
    others = [wait for each, wait in waited_s.items() if each != rank]
    if others and worst < _FAR_LONGER * statistics.median(others):
        return None
    factor = period_s / (period_s - worst)
    return SlowRank(rank, factor) if factor >= LEAST_FACTOR else None


class Stragglers:
    """Finds the rank of a node that the others wait for. Looks at most once a `period_s`. The
    node's first rank speaks, the second of the first."""

    def __init__(
        self,
        group: str,
        rank: int,
        members: Sequence[int],
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._others = tuple(each for each in members if each != rank)
        place = list(members).index(rank) if rank in members else 2
        self._speaks_of = {0: frozenset(members[1:]), 1: frozenset(members[:1])}.get(
            place, frozenset()
        )
        self._period_s = period_s
        self._clock = clock
        self._looked_at = clock()
        self._before: Sequence[float] = ()

    def look(self, waits_s: Callable[[], Sequence[float]]) -> None:
        """Called now and then between calls; `waits_s` gives the sums so far, by rank."""
        if not self._speaks_of:
            return
        now = self._clock()
        period_s = now - self._looked_at
        if period_s < self._period_s:
            return
        waits = waits_s()
        before = self._before or [0.0] * len(waits)
        self._looked_at, self._before = now, waits
        found = find({each: waits[each] - before[each] for each in self._others}, period_s)
        if found is not None and found.rank in self._speaks_of:
            _log.warning(
                "straggler: group %r, rank %d: steps take %.2f times as long as without waiting "
                "for it (last %.0f s); look at that rank's processor, data and disk",
                self._group, found.rank, found.factor, period_s,
            )  # fmt: skip
