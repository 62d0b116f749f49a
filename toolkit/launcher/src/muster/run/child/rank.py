"""One rank of this host: what is known of it, how it ended, and its failure as evidence."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from muster.plan.launchplan import RankSlot
from muster.run.base.causes import Cause, Surroundings, find_cause, follows_a_kill
from muster.run.base.evidence import (
    Evidence,
    last_lines,
    last_traceback,
    looks_like_lost_peer,
)
from muster.run.base.loop import Loop
from muster.run.base.memory import KillWatch
from muster.run.base.record import Recorder
from muster.run.channel.messages import RankEnd, shortened
from muster.run.child.child import Child
from muster.run.child.shim_handle import ShimHandle
from muster.types.outcome import RankFailure

if TYPE_CHECKING:
    from muster.run.child.ranks import HostRanks

FAILURE_TEXT_BYTES = 4096
SUMMARY_BYTES = 600
MORE_MEMORY = "use a smaller batch, fewer workers or ranks, or an instance with more memory"
NOWHERE = Surroundings()
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # as itself, or as a shell says it of its program
_STOPS = (signal.SIGTERM, signal.SIGINT)
STOPPED = (*(-number for number in _STOPS), *(128 + number for number in _STOPS))
_TOLD_TO_STOP = re.compile(r"\bSIGTERM\b|[Ss]ignal:? (?:15\b|Terminated)|^KeyboardInterrupt")
_OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)  # another status is one's own: it was leaving


class Rank(Child):
    """One rank of this host."""

    has_agent = True

    def __init__(self, slot: RankSlot, loop: Loop, owner: HostRanks, drain_s: float) -> None:
        super().__init__(loop, f"rank {slot.rank}", drain_s)
        self.slot = slot
        self.signalled_s: float | None = None
        self.killed = False
        self.wound_down = False  # signalled because its work is over
        self._owner = owner

    def on_start(self) -> None:
        self._owner.rank_started(self)

    def on_lost_shim(self) -> None:
        self._owner.rank_lost_shim(self)

    def on_end(self) -> None:
        self._owner.rank_ended(self)

    def on_last_words(self) -> None:
        self._owner.rank_spoke(self)

    def on_gone(self) -> None:
        self._owner.rank_gone(self)

    @property
    def ended_by_us(self) -> bool:
        """Whether it ended after a signal from muster."""
        return self.signalled_s is not None and self.ended_s >= self.signalled_s

    @property
    def failed(self) -> bool:
        """Whether it failed by itself, or was about to when muster signalled it."""
        handle = self.handle
        if handle is None or not handle.status or handle.lacked or handle.lost:
            return False
        if not self.ended_by_us:
            return True
        if self.wound_down:
            return False
        evidence = self.watcher.evidence()
        if evidence is None or not evidence.is_open:
            return False
        return evidence.at_s < (self.signalled_s or 0.0)

    def log(self, recorder: Recorder) -> str:
        """Where there is more of what it wrote: its error stream, else its output, else ""."""
        wrote = "err" if self.watcher.tail else "out" if self.watcher.spoke else ""
        return recorder.whole_log(f"rank-{self.slot.rank}.{wrote}") if wrote else ""

    def only_followed(self, peer_loss_exit_codes: Mapping[int, str]) -> bool:
        """Whether it ended by a status that says no more than that something else went away."""
        return self.status in peer_loss_exit_codes and self.watcher.evidence() is None

    def may_be_stopped(self, addresses: Iterable[str]) -> bool:
        """Whether its end may be what a stop did to it, or to a peer or child that it lost."""
        if self.status in STOPPED:
            return True
        evidence = self.watcher.evidence()
        words = last_traceback(self.watcher.tail)
        said = (evidence.summary if evidence is not None else "") or words
        told = _TOLD_TO_STOP.search(said) is not None
        return told or looks_like_lost_peer(said, words, addresses)

    def end(self, now: float) -> RankEnd:
        """How the rank ended; SIGKILL if it was killed and has not reported yet."""
        if not self.ended_s:
            took = round(now - self.began_s, 3)
            return RankEnd(self.slot.rank, -signal.SIGKILL, took, stopped=True, forced=True)
        took = round(self.ended_s - self.began_s, 3)
        return RankEnd(self.slot.rank, self.status, took, self.ended_by_us, self.killed)

    def failure(
        self,
        host: str,
        program: str,
        clock_offset_s: float,
        log: str,
        kills: KillWatch,
        mask: Callable[[str], str],
        peer_loss_exit_codes: Mapping[int, str] = MappingProxyType({}),
        around: Surroundings = NOWHERE,
    ) -> RankFailure:
        """Its failure as the leader weighs it: when it began by the leader's clock, and why.

        Secrets are masked before anything is cut: of one that is cut, a part would stay.
        """
        assert self.handle is not None
        status = self.status
        evidence = self._cause_shown(status)
        at_s = self.ended_s if evidence is None else min(evidence.at_s, self.ended_s)
        lost = peer_loss_exit_codes[status] if self.only_followed(peer_loss_exit_codes) else ""
        raised = mask(evidence.summary) if evidence is not None else lost
        shown = last_traceback if evidence is not None else last_lines
        words = mask(shown(self.watcher.tail))
        cause = find_cause(status, raised, words, around)
        if self.handle.failure:
            cause = Cause(f"{program} could not be started: {self.handle.failure}")
        note, fix = self._memory(status, cause, kills)
        return RankFailure(
            host=host,
            rank=self.slot.rank,
            status=status,
            at_s=at_s + clock_offset_s,
            summary=shortened(mask(cause.what), SUMMARY_BYTES),
            tail=shortened(words, FAILURE_TEXT_BYTES, keep_end=True),
            peer_lost=bool(lost) or looks_like_lost_peer(raised or words, words, around.addresses),
            signalled=self.ended_by_us and status in _OUR_SIGNALS,
            log=log,
            note=note,
            fix=shortened(mask(fix), SUMMARY_BYTES),
        )

    def _memory(self, status: int, cause: Cause, kills: KillWatch) -> tuple[str, str]:
        """A note for one that the kernel killed for memory, and the fix for any."""
        killed = status in _KILLED
        pid = self.handle.pid if self.handle is not None else 0
        note = kills.killed(pid, self.ended_s) if killed else ""
        if note:
            return note, MORE_MEMORY
        another = ""
        if killed or follows_a_kill(cause.what):
            another = kills.another(self.ended_s, recent=not killed)
        return "", f"{another}: {MORE_MEMORY}" if another else cause.fix

    def _cause_shown(self, status: int) -> Evidence | None:
        """Its last error block. Who is killed after it had gone on did not die of that."""
        evidence = self.watcher.evidence()
        killed = status == -signal.SIGKILL and evidence is not None and not evidence.is_open
        return None if killed else evidence


def pid_namespace() -> int | None:
    """The namespace that pids of this host are of, as `ps -o pidns` and `lsns` show it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def running(ranks: Iterable[Rank], others: Iterable[ShimHandle]) -> list[int]:
    """The pids of those that run."""
    handles = [*(rank.handle for rank in ranks), *others]
    return [one.pid for one in handles if one is not None and one.pid and not one.ended]
