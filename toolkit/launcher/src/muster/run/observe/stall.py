"""When a roll call is due by itself, and when ranks that wait end the job. Pure: times go in.

Only what this host saw counts: the time while it was suspended does not.
"""

from __future__ import annotations

from muster.run.observe.rollcall import STUCK, RollVerdict
from muster.types.deadlines import Deadlines

MOST_S = 5.0  # between two looks
AWAY_S = 2.0  # a look that is so late shows that the host was suspended
CONFIRM_S = 1.0  # between two roll calls that must agree before a job is ended
IDLE_PART = 0.5  # of the limit, for which the guilty ranks must have done nothing at all
WAIT, IDLE = "wait", "idle"


class StallClock:
    """The limits of one job, and what has been said of it."""

    def __init__(self, deadlines: Deadlines, now: float) -> None:
        self._first = {WAIT: deadlines.stall_wait_s, IDLE: deadlines.stall_idle_s}
        self._next = dict(self._first)
        self._hang_s = deadlines.hang_s
        self._again = {WAIT: 0.0, IDLE: 0.0}  # no roll call before
        self._counted_from = now
        self._looked_s = now
        self._suspect: tuple[object, ...] = ()
        limits = [limit for limit in (*self._first.values(), self._hang_s) if limit]
        self.every_s = max(0.1, min(MOST_S, min(limits) / 4)) if limits else 0.0  # 0: never

    def looks(self, now: float) -> bool:
        """To be called at every look; whether the host was away since the last."""
        away = now - self._looked_s > self.every_s + AWAY_S
        self._looked_s = now
        if away:
            self._counted_from = now
        return away

    def counted(self, time_s: float, now: float) -> float:
        """How much of a time until now was seen from here."""
        return min(time_s, now - self._counted_from)

    def is_due(self, kind: str, time_s: float) -> bool:
        """Whether a roll call is due after so long; again after twice the time, and from the
        beginning once nothing waits so long any more."""
        first = self._first[kind]
        if time_s < first:
            self._next[kind] = first
        late = bool(first) and time_s >= self._next[kind]
        if not (late or self.may_hang(time_s)):
            if time_s < (first or self._hang_s):
                self._again[kind] = 0.0
            return False
        return time_s >= self._again[kind]

    def called(self, kind: str, time_s: float) -> None:
        """The roll is called: again after half as long once more, for it may find that all is
        well, and costs the ranks a look at their stacks."""
        again_s = 1.5 * time_s
        self._again[kind] = min(again_s, self._hang_s) if time_s < self._hang_s else again_s

    def says(self, kind: str, time_s: float) -> bool:
        """Whether the verdict is to be said; then the next is due after twice the time."""
        due = bool(self._first[kind]) and time_s >= self._next[kind]
        while self._first[kind] and self._next[kind] <= time_s:
            self._next[kind] *= 2
        return due

    def may_hang(self, time_s: float) -> bool:
        return bool(self._hang_s) and time_s >= self._hang_s

    def hangs(self, kind: str, verdict: RollVerdict, idle_s: float, now: float) -> bool:
        """Whether the job is to be ended: two roll calls in a row say the same of ranks that do
        nothing. `idle_s`: since when that is so, of all ranks, or of the guilty ones where others
        wait; where none is guilty, of those that wait. One that computes, moves bytes, saves or
        evaluates may well come to its end."""
        waited_s = idle_s if kind == IDLE else self.counted(verdict.waited_s, now)
        stuck = verdict.kind in STUCK or (kind == IDLE and verdict.kind in ("idle", "apart"))
        # of the others it was seen where they are; data may still move, and two looks miss that
        if verdict.kind in ("waiting", "stopped", "transfer"):
            stuck = self.counted(idle_s, now) >= IDLE_PART * self._hang_s
        if not (stuck and self.may_hang(waited_s)):
            self._suspect = ()
            return False
        found = (verdict.kind, verdict.guilty, verdict.waiting)
        sure = self._suspect == found
        self._suspect = () if sure else found
        return sure

    @property
    def doubts(self) -> bool:
        """Whether a second roll call is to confirm the first."""
        return bool(self._suspect)
