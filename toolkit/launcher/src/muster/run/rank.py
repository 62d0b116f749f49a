"""One rank of this host: what is known of it, how it ended, and its failure as evidence."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType

from muster.plan.launchplan import LaunchPlan, RankSlot
from muster.run.evidence import Watcher, last_traceback, looks_like_lost_peer
from muster.run.messages import RankEnd, shortened
from muster.run.wrapped import Wrapped
from muster.spec.outcome import RankFailure

FAILURE_TEXT_BYTES = 4096
SUMMARY_BYTES = 600
_OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)  # another status is one's own: it was leaving


class Rank:
    """Times are seconds of this host's monotonic clock; `ended_s` 0 until it has ended."""

    def __init__(self, slot: RankSlot) -> None:
        self.slot = slot
        self.wrapped: Wrapped | None = None
        self.watcher = Watcher()
        self.open_streams = 0
        self.began_s = 0.0
        self.ended_s = 0.0
        self.signalled_s: float | None = None
        self.killed = False
        self.wound_down = False  # signalled because its work is over
        self.gone = False  # ended, and its output is read
        self.told = False

    @property
    def ended_by_us(self) -> bool:
        """Whether it ended after our signal."""
        return self.signalled_s is not None and self.ended_s >= self.signalled_s

    @property
    def failed(self) -> bool:
        """Whether it failed on its own, or was about to when we signalled it."""
        wrapped = self.wrapped
        if wrapped is None or not wrapped.status or wrapped.lacked or wrapped.lost:
            return False
        if not self.ended_by_us:
            return True
        if self.wound_down:
            return False
        evidence = self.watcher.evidence()
        if evidence is None or not evidence.is_open:
            return False
        return evidence.at_s < (self.signalled_s or 0.0)

    def only_followed(self, lost_statuses: Mapping[int, str]) -> bool:
        """Whether it ended by a status that says no more than that something else went away."""
        status = (self.wrapped.status or 0) if self.wrapped is not None else 0
        return status in lost_statuses and self.watcher.evidence() is None

    def end(self, now: float) -> RankEnd:
        """How it ended, for the summary; of one that was killed and has not told yet, that."""
        if not self.ended_s:
            took = round(now - self.began_s, 3)
            return RankEnd(self.slot.rank, -signal.SIGKILL, took, stopped=True, forced=True)
        status = self.wrapped.status if self.wrapped is not None else None
        took = round(self.ended_s - self.began_s, 3)
        return RankEnd(self.slot.rank, status or 0, took, self.ended_by_us, self.killed)

    def failure(
        self,
        host: str,
        program: str,
        clock_offset_s: float,
        log: str,
        memory_note: Callable[[], str],
        mask: Callable[[str], str],
        lost_statuses: Mapping[int, str] = MappingProxyType({}),
    ) -> RankFailure:
        """Its failure as the leader weighs it: when it began by the leader's clock, and why.

        Secrets are masked before anything is cut: of one that is cut, a part would stay.
        """
        assert self.wrapped is not None
        status = self.wrapped.status or 0
        evidence = self.watcher.evidence()
        at_s = self.ended_s if evidence is None else min(evidence.at_s, self.ended_s)
        lost = lost_statuses[status] if self.only_followed(lost_statuses) else ""
        summary = evidence.summary if evidence is not None else lost
        if self.wrapped.failure:
            summary = f"{program} could not be started: {self.wrapped.failure}"
        words = mask(last_traceback(self.watcher.tail))
        tail = shortened(words, FAILURE_TEXT_BYTES, keep_end=True)
        return RankFailure(
            host=host,
            rank=self.slot.rank,
            status=status,
            at_s=at_s + clock_offset_s,
            summary=shortened(mask(summary), SUMMARY_BYTES),
            tail=tail,
            peer_lost=bool(lost) or looks_like_lost_peer(summary or tail),
            signalled=self.ended_by_us and status in _OUR_SIGNALS,
            log=log,
            note=memory_note() if status in (-signal.SIGKILL, 137) else "",
        )


def rank_environment(
    plan: LaunchPlan, slot: RankSlot, started_with: Mapping[str, str]
) -> dict[str, str]:
    """A rank's environment: its own host's, over it only what the launcher made, then its own."""
    environ = dict(plan.script.env)
    names = frozenset(name for name in plan.rank_env if not name.endswith("*"))
    prefixes = tuple(name[:-1] for name in plan.rank_env if name.endswith("*"))
    for name, value in started_with.items():
        if name in names or (prefixes and name.startswith(prefixes)):
            environ[name] = value
    environ.update(plan.per_rank.get(slot.rank, {}))
    environ.setdefault("PYTHONUNBUFFERED", "1")
    return environ
