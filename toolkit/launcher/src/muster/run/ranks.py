"""The ranks of this host while they run: started below shims, watched, signalled, accounted for.

It tells what happened through `RanksEvents` and decides nothing. Source: protocol.md 4 to 6.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from muster.plan.launchplan import LaunchPlan
from muster.run.causes import Surroundings
from muster.run.companion import LAST_WORDS_S, Companion, launch_trouble, lost_status
from muster.run.launching import ROLE, SETTLE_S, Launching
from muster.run.logs import Pump, Stream
from muster.run.loop import Loop
from muster.run.memory import KillWatch, Memory
from muster.run.messages import RankEnd, Trouble
from muster.run.process import NEVER_STARTED, Nursery, turn_away
from muster.run.rank import Rank, pid_namespace, rank_environment, running
from muster.run.record import Recorder
from muster.run.servers import Servers
from muster.run.shortage import not_started
from muster.run.wrapped import Wrapped
from muster.spec.outcome import RankFailure
from muster.spec.shown import Shown

if TYPE_CHECKING:
    from muster.run.group_watch import GroupWatch

FAILURES_TOLD = 5  # so many texts fit a frame beside the ends of 1,024 ranks
FOLLOWED_S = LAST_WORDS_S + 2 * SETTLE_S + 0.5  # what a rank only followed is told by then
WATCH_S = 2.0  # what has ended by then is not looked at: nobody trains in so short a time
SHIM_S = 0.25  # how long a rank may take to say why its launcher killed its shim


class RanksEvents(Protocol):
    """What the ranks of a host tell; all on the loop's thread."""

    def ranks_started(self, count: int) -> None: ...
    def rank_failed(self, failure: RankFailure) -> None: ...
    def ranks_gone(self, ends: tuple[RankEnd, ...], failures: tuple[RankFailure, ...]) -> None: ...
    def launch_failed(self, trouble: Trouble) -> None: ...
    def ranks_note(self, text: str, level: str = "INFO") -> None: ...


class HostRanks:
    """`clock_offset()`: seconds from this host's clock to the leader's. `memory`: what the kernel
    counts; `around`: the ranks, less what the plan says. `mask`: hides secrets in failures."""

    def __init__(
        self,
        host: str,
        loop: Loop,
        nursery: Nursery,
        pump: Pump,
        recorder: Recorder,
        events: RanksEvents,
        drain_s: float,
        shown: Shown,
        clock_offset: Callable[[], float],
        memory: Memory,
        around: Surroundings,
        mask: Callable[[str], str],
        idle_s: float,
        grace_s: float,
    ) -> None:
        self._host = host
        self._loop = loop
        self._nursery = nursery
        self._pump = pump
        self._recorder = recorder
        self._events = events
        self._drain_s = drain_s
        self._shown = shown
        self._clock_offset = clock_offset
        self._around = around
        self._kills = KillWatch(memory, lambda: running(self._ranks, self._servers.wrapped))
        self._mask = mask
        self._idle_s, self._grace_s = idle_s, grace_s
        self._plan: LaunchPlan | None = None
        self._addresses: Collection[str] = ()
        self._ranks: list[Rank] = []
        self._winding = False
        self._stopping = False
        self._over = False  # no rank runs any more
        self._held: set[int] = set()  # ranks whose failure is told once its cause had the time
        self._released = False
        self._started = False
        self._leads = False
        self._watch: GroupWatch | None = None
        told, closing = events.launch_failed, lambda: self._released or self._stopping
        self._servers = Servers(host, loop, nursery, closing, told, self._kills, mask)
        self.launching = Launching(host, loop, nursery, self, closing, told, mask)

    def start(self, plan: LaunchPlan, host: int, addresses: Collection[str]) -> None:
        """Starts what the plan has for this host; `addresses`: of all hosts of the job. Raises
        LaunchError when a fork fails."""
        self._plan = plan
        self._addresses = addresses
        self._around = self._around.of_plan(plan, addresses)
        self._kills.begin(self._loop, lambda: self._over)
        self._ranks = [Rank(slot) for slot in plan.ranks_of(host)]
        self._leads = host == plan.leader
        self._servers.start(plan.services)
        self.launching.start(plan)
        if not plan.launched:
            for rank in self._ranks:
                self._nursery.spawn(f"rank:{rank.slot.local_rank}", plan.script.env)

    def wind_down(self) -> None:
        """Rank 0 has ended well: ranks of the world that do nothing from here on are ended."""
        if self._plan is None or self._winding:
            return
        from muster.run.wind_down import WindDown  # few jobs need it

        self._winding = True
        WindDown(
            self._loop,
            [rank for rank in self._ranks if rank.slot.rank < self._plan.world_size],
            not self._plan.script_is_python,
            self._idle_s,
            self._grace_s,
            self._addresses,
            lambda: self._stopping or self._over,
            self._events.ranks_note,
        ).begin()

    def signal(self) -> None:
        """SIGTERM to every script that still runs; what has not started will not start."""
        self._stopping = True
        now = time.monotonic()
        group = self._plan is not None and not self._plan.script_is_python
        for rank in self._ranks:
            if rank.wrapped is None:
                rank.gone = True
            elif not rank.wrapped.ended and (group or not rank.wrapped.has_died):
                rank.signalled_s = now
                rank.wrapped.signal(signal.SIGTERM, group)
        if not any(rank.wrapped for rank in self._ranks):
            self.launching.kill()
        self._check_gone()

    def kill(self) -> None:
        """SIGKILL to everything below the shims of this host."""
        self._stopping = True
        now = time.monotonic()
        for rank in self._ranks:
            if rank.wrapped is None:
                rank.gone = True
                continue
            if not rank.wrapped.ended:
                rank.killed = True
                rank.signalled_s = rank.signalled_s or now
            rank.wrapped.kill()
        self._servers.kill()
        self._loop.after(1.0, self._pump.abandon)
        self._check_gone()

    def give_up(self) -> None:
        """Killed ranks took too long to go: their ends are told as far as they are known."""
        self._tell_gone()

    def release(self) -> None:
        """The verdict is there: shims end, and with them the launcher."""
        self._over = self._released = True
        for rank in self._ranks:
            if rank.wrapped is not None:
                rank.wrapped.release()
        self._servers.release()

    def registered(self, wrapped: Wrapped, out_fd: int, err_fd: int) -> None:
        """A shim of this host is there and waits for its order."""
        if self._plan is None or self._stopping or self._released:
            turn_away(wrapped, out_fd, err_fd)
            return
        companion = self._companion_of(wrapped)
        if companion is not None:
            shims = self._nursery.variable if wrapped.role == ROLE else ""
            companion.begin(
                wrapped, out_fd, err_fd, self._loop, self._pump, self._recorder, self._shown, shims
            )
            return
        rank = None if self._over else self._rank_of(wrapped)
        if rank is None:
            turn_away(wrapped, out_fd, err_fd)
            return
        rank.wrapped = wrapped
        rank.began_s = time.monotonic()
        for fd, name, target in ((out_fd, "out", 1), (err_fd, "err", 2)):
            rank.open_streams += 1
            self._pump.add(self._stream(rank, fd, name, target))
        script = self._plan.script
        environ = rank_environment(self._plan, rank.slot, wrapped.environ)
        wrapped.start(script.argv, {**environ, **self.launching.shared}, script.cwd)

    def unborn(self, role: str) -> None:
        """A shim of this host ended before it registered: nothing will ever stand for its rank,
        or for a server that ranks of other hosts may need."""
        if not self._stopping and not self._released:
            what, fix = NEVER_STARTED
            self._events.launch_failed(launch_trouble(f"{what} ({role} on {self._host})", fix))

    def changed(self, wrapped: Wrapped) -> None:
        """A script of this host started or ended, or its shim is gone."""
        companion = self._companion_of(wrapped)
        if companion is not None:
            companion.changed(self._loop)
            self._tell_started()
            return
        rank = next((rank for rank in self._ranks if rank.wrapped is wrapped), None)
        if rank is None:
            return
        if wrapped.pid and not wrapped.ended and wrapped.connected:
            facts = {"pid": wrapped.pid, "pid_namespace": pid_namespace()}
            size = 0 if self._plan is None else self._plan.world_size
            self._recorder.event("rank_started", rank.slot.rank, world_size=size, **facts)
            self._tell_started()
        elif wrapped.ended and not rank.ended_s:
            self._rank_ended(rank, wrapped)
        elif wrapped.bereft and self._plan is not None and self._plan.lost_statuses:
            self._loop.after(SHIM_S, lambda: self._tell_shim(rank))

    def describe(self, wrapped: Wrapped) -> str:
        """What a shim stands for, to a reader."""
        companion = self._companion_of(wrapped)
        if companion is not None:
            return companion.what
        ranks = (rank.slot.rank for rank in self._ranks if rank.wrapped is wrapped)
        return next((f"rank {rank}" for rank in ranks), wrapped.role)

    def _tell_started(self) -> None:
        """Once everything of this host runs, servers too."""
        if self.all_ran and self._servers.all_ran and not self._started:
            self._started = True
            self._events.ranks_started(len(self._ranks))
            if self._leads and self._plan is not None and self._plan.launched:
                self._loop.after(WATCH_S, self._watch_groups)

    def _watch_groups(self) -> None:
        assert self._plan is not None
        if self._over or self._plan.world_size == 1:
            return
        from muster.run.group_watch import GroupWatch  # short jobs go without

        world = [rank for rank in self._ranks if rank.slot.rank < self._plan.world_size]
        self._watch = GroupWatch(self._loop, world)
        self._watch.look()

    def _tell_shim(self, rank: Rank) -> None:
        """A launcher takes the end of a shim for its rank's and ends the job for it. It may have
        ended the shim itself because of a rank (MPI_Abort); that one has told by now."""
        if not (self._over or self._stopping or rank.ended_s):
            what = f"the process above rank {rank.slot.rank} was killed (on {self._host})"
            fix = "look for what kills processes there: a memory limit, or a person"
            self._events.launch_failed(launch_trouble(what, fix))

    def _companion_of(self, wrapped: Wrapped) -> Companion | None:
        """The launcher or server that the shim stands for."""
        if wrapped.role == ROLE:
            return self.launching.companion
        return self._servers.find(wrapped.role)

    def _rank_of(self, wrapped: Wrapped) -> Rank | None:
        """The rank that the shim stands for, or None when there is no such place left."""
        assert self._plan is not None
        _, _, number = wrapped.role.partition(":")
        local = number or wrapped.environ.get(self._plan.rank_names.local_rank, "0")
        for rank in self._ranks:
            if str(rank.slot.local_rank) == local and rank.wrapped is None:
                return None if self.launching.refuses(rank, wrapped.environ) else rank
        return None

    def _stream(self, rank: Rank, fd: int, name: str, target: int) -> Stream:
        assert self._plan is not None
        number, chosen = rank.slot.rank, self._shown.ranks
        prefix = f"[{self._host}:{number}] ".encode() if self._shown.prefix else b""
        if chosen is not None and not chosen.has(number, self._plan.world_size):
            target = -1
        keep = self._recorder.keeper(f"rank-{rank.slot.rank}.{name}")

        def ended() -> None:
            self._loop.post(lambda: self._stream_ended(rank))

        return Stream(fd, target, prefix, rank.watcher, keep, ended, is_stderr=name == "err")

    def _stream_ended(self, rank: Rank) -> None:
        rank.open_streams -= 1
        if rank.ended_s and rank.open_streams == 0:
            self._tell_failure(rank)
            self._rank_gone(rank)

    def _rank_ended(self, rank: Rank, wrapped: Wrapped) -> None:
        rank.ended_s = time.monotonic()
        stopped = rank.ended_by_us
        self._recorder.event("rank_ended", rank.slot.rank, status=wrapped.status, stopped=stopped)
        if wrapped.lacked:  # not the script's fault, so no failure of the rank's
            rank.told = True
            error = not_started(f"rank {rank.slot.rank} on {self._host}", wrapped.failed_errno)
            self._events.launch_failed(launch_trouble(error.message, error.fix))
        if wrapped.lost:
            rank.told = True
            self._events.launch_failed(lost_status(f"rank {rank.slot.rank} on {self._host}"))
        if rank.open_streams <= 0:
            self._tell_failure(rank)
            self._rank_gone(rank)
            return
        self._loop.after(LAST_WORDS_S, lambda: self._tell_failure(rank))
        self._loop.after(self._drain_s, lambda: self._drained(rank))

    def _drained(self, rank: Rank) -> None:
        """Something the script left behind keeps its output open: it goes now."""
        if not rank.gone and rank.wrapped is not None:
            rank.wrapped.kill()
            self._loop.after(1.0, lambda: self._rank_gone(rank))

    def _tell_failure(self, rank: Rank) -> None:
        if rank.told or rank.wrapped is None or rank.signalled_s is not None:
            return
        if not rank.wrapped.status:
            return
        rank.told = True
        if self._plan is not None and rank.only_followed(self._plan.lost_statuses):
            # who hears of it ends the job, and what it followed would not be told any more
            self._held.add(rank.slot.rank)
            self._loop.after(FOLLOWED_S, lambda: self._tell_held(rank))
        else:
            self._events.rank_failed(self._failure(rank))

    def _tell_held(self, rank: Rank) -> None:
        """Nobody has told of what the rank followed."""
        self._held.discard(rank.slot.rank)
        if not self._over:
            self._events.rank_failed(self._failure(rank))

    def _rank_gone(self, rank: Rank) -> None:
        rank.gone = True
        assert self._plan is not None
        leads = self._plan.led_by_first and rank.slot.rank == 0
        if leads and rank.wrapped is not None and rank.wrapped.status == 0:
            self.wind_down()
        self._check_gone()

    def _check_gone(self) -> None:
        if self._over or not all(rank.gone for rank in self._ranks):
            return
        if self.launching.works_on and self.launching.is_untold and not self._stopping:
            for rank in self._ranks:  # it waits for their shims, and we wait for it
                if rank.wrapped is not None:
                    rank.wrapped.release()
            return
        if self._held and not self._stopping:
            return
        self._tell_gone()

    def _tell_gone(self) -> None:
        self._over = True
        well = all(rank.wrapped is not None and rank.wrapped.status == 0 for rank in self._ranks)
        found = self._watch.warning() if well and self._watch is not None else ""
        if found:
            self._events.ranks_note(found, "WARNING")
        now = time.monotonic()
        ends = tuple(rank.end(now) for rank in self._ranks if rank.ended_s or rank.killed)
        self._events.ranks_gone(ends, self._failures())

    def _failures(self) -> tuple[RankFailure, ...]:
        """Ranks that failed on their own, and those that were about to when we signalled them."""
        found = [self._failure(rank) for rank in self._ranks if rank.failed]
        return tuple(sorted(found, key=lambda failure: failure.at_s)[:FAILURES_TOLD])

    def _failure(self, rank: Rank) -> RankFailure:
        assert self._plan is not None
        return rank.failure(
            self._host,
            self._plan.script.argv[0],
            self._clock_offset(),
            rank.log(self._recorder),
            self._kills,
            self._mask,
            self._plan.lost_statuses,
            self._around,
        )

    @property
    def all_ran(self) -> bool:
        return all(rank.wrapped is not None and rank.wrapped.pid for rank in self._ranks)

    @property
    def all_ended(self) -> bool:
        return all(rank.ended_s for rank in self._ranks)

    @property
    def lost_something(self) -> bool:
        """Whether a rank has ended for what it lost, and that is to be told before it."""
        return bool(self._held)

    def launcher_gone(self) -> None:
        """The launcher has nothing to tell, and nothing is waited for but what else runs."""
        self._check_gone()
