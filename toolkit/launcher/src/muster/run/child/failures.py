"""What failed on this host, until it is reported: ranks, and what the host itself could not do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from muster.plan.launchplan import LaunchPlan
from muster.run.base.causes import Surroundings
from muster.run.base.loop import Loop
from muster.run.base.memory import KillWatch
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError
from muster.run.child.child import LAST_WORDS_S
from muster.run.child.launching import SETTLE_S
from muster.run.child.rank import Rank
from muster.types.outcome import RankFailure

MOST_REPORTED = 5  # so many texts fit a frame beside the ends of 1,024 ranks
FOLLOWED_S = LAST_WORDS_S + 2 * SETTLE_S + 0.5  # what a rank only followed is reported by then
_RECORDED = ("status", "summary", "at_s", "peer_lost")


class FailureEvents(Protocol):
    """Where a failure goes once it is known to be one."""

    def rank_failed(self, failure: RankFailure) -> None: ...
    def launch_failed(self, host_error: HostError) -> None: ...


class Failures:
    """Reports what failed at once, or after a moment where its cause may still show: a rank that
    ended for what it lost, and, where a stop signals every process, whatever it may have ended.

    `stop_hold_s`: that second moment, or 0. `clock_offset()`: seconds from this host's clock to the
    leader's. `around`: the ranks, less what the plan says. `mask`: hides secrets. `stopping()`,
    `over()`: whether the ranks are to end, and whether none runs any more.
    """

    def __init__(
        self,
        host: str,
        loop: Loop,
        recorder: Recorder,
        events: FailureEvents,
        kills: KillWatch,
        clock_offset: Callable[[], float],
        around: Surroundings,
        mask: Callable[[str], str],
        stop_hold_s: float,
        stopping: Callable[[], bool],
        over: Callable[[], bool],
    ) -> None:
        self._host = host
        self._loop = loop
        self._recorder = recorder
        self._events = events
        self._kills = kills
        self._clock_offset = clock_offset
        self._around = around
        self._mask = mask
        self._stop_hold_s = stop_hold_s
        self._stopping = stopping
        self._over = over
        self._program = ""
        self._peer_loss: Mapping[int, str] = {}  # exit codes that say no more than that
        self._addresses: Collection[str] = ()
        self._recorded: set[int] = set()  # ranks
        self._held: set[int] = set()  # ranks that wait for their cause to show
        self._held_errors = 0

    def begin(self, plan: LaunchPlan, addresses: Collection[str]) -> None:
        """Before the first rank is started."""
        self._program = plan.script.argv[0]
        self._peer_loss = plan.ends.peer_loss_exit_codes
        self._addresses = addresses
        self._around = self._around.of_plan(plan, addresses)

    @property
    def waits_for_cause(self) -> bool:
        """Whether a rank has ended for what it lost, which is to be reported first."""
        return bool(self._held)

    @property
    def waits(self) -> bool:
        """Whether anything is still to be reported."""
        return bool(self._held or self._held_errors)

    def rank_spoke(self, rank: Rank) -> None:
        """A rank has ended and said its last words: reports its failure, if it is one."""
        handle = rank.handle
        if handle is None or handle.lacked or handle.lost:
            return
        if rank.signalled_s is not None or not rank.status:
            return
        if rank.only_followed(self._peer_loss):
            # the report ends the job, and what the rank followed would not be reported any more
            self._hold(rank, FOLLOWED_S)
        elif self._stop_hold_s and (handle.signalled or rank.may_be_stopped(self._addresses)):
            self._hold(rank, self._stop_hold_s)
        else:
            self._events.rank_failed(self._failure(rank))

    def error(self, host_error: HostError) -> None:
        """Reports what became of a launcher, a server or a shim, unless a stop did it."""
        if not self._stop_hold_s:
            self._events.launch_failed(host_error)
            return
        self._held_errors += 1

        def report() -> None:
            self._held_errors -= 1
            if not self._stopping():
                self._events.launch_failed(host_error)

        self._loop.after(self._stop_hold_s, report)

    def give_to_stop(self, ranks: Iterable[Rank], now: float) -> None:
        """A stop that signals every process is heard of: it ended what waits to be reported, and
        whatever else ended within the moment before it."""
        since = now - self._stop_hold_s
        for rank in ranks:
            died = rank.handle is not None and rank.handle.has_died
            if rank.slot.rank in self._held or (died and (rank.ended_s or now) >= since):
                rank.signalled_s = min(rank.ended_s or now, since)
        self._held.clear()

    def of(self, ranks: Iterable[Rank]) -> tuple[RankFailure, ...]:
        """Of those that failed by themselves, and that were about to when muster signalled them."""
        found = [self._failure(rank) for rank in ranks if rank.failed]
        return tuple(sorted(found, key=lambda failure: failure.at_s)[:MOST_REPORTED])

    def _hold(self, rank: Rank, for_s: float) -> None:
        number = rank.slot.rank
        self._held.add(number)

        def report() -> None:
            if number in self._held and not self._over():
                self._events.rank_failed(self._failure(rank))
            self._held.discard(number)

        self._loop.after(for_s, report)

    def _failure(self, rank: Rank) -> RankFailure:
        """Its failure, which is recorded the first time."""
        failure = rank.failure(
            self._host,
            self._program,
            self._clock_offset(),
            rank.log(self._recorder),
            self._kills,
            self._mask,
            self._peer_loss,
            self._around,
        )
        if failure.rank not in self._recorded:
            self._recorded.add(failure.rank)
            facts = {name: getattr(failure, name) for name in _RECORDED}
            self._recorder.event("failure", failure.rank, **facts)
        return failure
