"""Whose silence is whose: pure, over the times at which a host looks at what it has heard."""

from __future__ import annotations

from muster.types.deadlines import Deadlines


class SuspensionGuard:
    """Tells a host that stood still itself (frozen, paused with its machine) from silent others.

    Whoever stood still beside it says nothing either, and a follower hears answers to its own
    heartbeats only: both need a moment to be heard again. A stand shorter than half of the limit
    makes nobody lost that speaks with every heartbeat, since the limit holds two of them.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._stand_s = deadlines.lost_after_s / 2
        self._spared_s = deadlines.warn_after_s
        self._looked_s: float | None = None
        self._stood = False
        self._spared_until_s = float("-inf")

    def spares(self, now: float) -> bool:
        """To be asked at each look: whether no silence is to be judged at this one.

        Of stands in a row only the first counts, so that whoever is silent is lost in the end.
        """
        stood = self._looked_s is not None and now - self._looked_s >= self._stand_s
        if stood and not self._stood:
            self._spared_until_s = now + self._spared_s
        self._looked_s, self._stood = now, stood
        return now < self._spared_until_s
