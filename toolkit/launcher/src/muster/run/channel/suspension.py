"""Keeps a host that was suspended itself from declaring its peers lost. Pure."""

from __future__ import annotations

from muster.types.deadlines import Deadlines


class SuspensionGuard:
    """Do not blame peers for silence while this host itself was suspended.

    A host that was suspended with its machine or stopped resumes beside peers that may have been
    suspended too, and a follower hears only answers to its own heartbeats: both need a moment to be
    heard again. A suspension shorter than half of the limit loses no peer that sends heartbeats,
    since the limit spans two of them.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._suspended_s = deadlines.lost_after_s / 2
        self._spared_s = deadlines.warn_after_s
        self._looked_s: float | None = None
        self._was_suspended = False
        self._spared_until_s = float("-inf")

    def spares(self, now: float) -> bool:
        """Whether this look must not declare a peer lost. Call it at every look.

        Of suspensions in a row only the first counts, so that a silent peer is lost in the end.
        """
        suspended = self._looked_s is not None and now - self._looked_s >= self._suspended_s
        if suspended and not self._was_suspended:
            self._spared_until_s = now + self._spared_s
        self._looked_s, self._was_suspended = now, suspended
        return now < self._spared_until_s
