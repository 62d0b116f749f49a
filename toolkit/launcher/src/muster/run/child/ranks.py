"""The ranks of this host while they run: started below shims, watched, signalled, accounted for.

It reports what happened through `RanksEvents` and decides nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from muster.plan.launchplan import LaunchPlan, WorkEnds
from muster.run.base.causes import Surroundings
from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.base.memory import KillWatch, Memory
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError, RankEnd
from muster.run.child.auxiliary import AuxiliaryProcess, Surrounding, launch_error, never_ran
from muster.run.child.failures import Failures
from muster.run.child.launching import ROLE, Launching
from muster.run.child.rank import Rank, pid_namespace, running
from muster.run.child.servers import Servers
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import NEVER_STARTED, ShimPool, turn_away
from muster.types.deadlines import Deadlines
from muster.types.debug import Debug
from muster.types.outcome import RankFailure
from muster.types.shown import Shown

if TYPE_CHECKING:
    from muster.run.child.group_watch import GroupWatch

WATCH_S = 2.0  # what has ended by then is not looked at: no training is that short
NO_AGENTS = (
    "the limit of open files (ulimit -n) is low: the ranks of this host run without agents, so "
    "`muster stacks` cannot ask them"
)
SHIM_S = 0.25  # how long a rank may take to say why its launcher killed its shim


class RanksEvents(Protocol):
    """What the ranks of a host report; all on the loop's thread."""

    def ranks_started(self, count: int) -> None: ...
    def rank_failed(self, failure: RankFailure) -> None: ...
    def ranks_gone(self, ends: tuple[RankEnd, ...], failures: tuple[RankFailure, ...]) -> None: ...
    def launch_failed(self, host_error: HostError) -> None: ...
    def ranks_note(self, text: str, level: str = "INFO") -> None: ...


class HostRanks:
    """The ranks of this host.

    `clock_offset()`: seconds from this host's clock to the leader's. `memory`: what the kernel
    counts; `around`: the ranks, less what the plan says. `mask`: hides secrets in failures.
    """

    def __init__(
        self,
        host: str,
        loop: Loop,
        pool: ShimPool,
        pump: Pump,
        recorder: Recorder,
        events: RanksEvents,
        deadlines: Deadlines,
        shown: Shown,
        clock_offset: Callable[[], float],
        memory: Memory,
        around: Surroundings,
        mask: Callable[[str], str],
        debug: Debug,
    ) -> None:
        self._debug = debug
        self._host = host
        self._loop = loop
        self._pool = pool
        self._pump = pump
        self._recorder = recorder
        self._events = events
        self._deadlines = deadlines
        self._shown = shown
        self._kills = KillWatch(memory, lambda: running(self._ranks, self._servers.handles))
        self._plan: LaunchPlan | None = None
        self._addresses: Collection[str] = ()
        self._at_start: Mapping[str, str] = {}
        self._ranks: list[Rank] = []
        self._winding = False
        self._stopping = False
        self._over = False  # no rank runs any more
        self._released = False
        self._agents = True  # whether ranks have agents
        self._started = False
        self._leads = False
        self._watch: GroupWatch | None = None
        self._failures = Failures(
            host, loop, recorder, events, self._kills, clock_offset, around, mask,
            deadlines.stop_hold_s, lambda: self._stopping, lambda: self._over,
        )  # fmt: skip
        beside = Surrounding(
            host, loop, pool, pump, recorder, shown, self,
            lambda: self._released or self._stopping,
            self._report_started, self._failures.error, mask,
        )  # fmt: skip
        self._servers = Servers(beside, self._kills)
        self.launching = Launching(beside, self)

    def start(
        self,
        plan: LaunchPlan,
        host: int,
        addresses: Collection[str],
        at_start: Mapping[str, str],
    ) -> None:
        """Starts what the plan has for this host. `addresses`: of all hosts of the job; `at_start`:
        variables of every process, which no plan holds. Raises LaunchError when a fork fails."""
        self._plan = plan
        self._at_start = at_start
        self._addresses = addresses
        self._failures.begin(plan, addresses)
        self._kills.begin(self._loop, lambda: self._over)
        drain_s = self._deadlines.drain_s
        self._ranks = [Rank(slot, self._loop, self, drain_s) for slot in plan.ranks_of(host)]
        self._agents = self._pool.room_for_agents(len(self._ranks))
        if not self._agents:
            self._events.ranks_note(NO_AGENTS)
        self._leads = host == plan.leader
        self._servers.start(plan.services, at_start)
        self.launching.start(plan, at_start)
        if plan.launched is None:
            for rank in self._ranks:
                environ = {**plan.script.env, **at_start}
                self._pool.spawn(f"rank:{rank.slot.local_rank}", environ, self)

    def wind_down(self) -> None:
        """Rank 0 has ended well: ranks of the world that do nothing from here on are ended."""
        if self._plan is None or self._winding:
            return
        from muster.run.child.wind_down import IdleRanks  # few jobs need it

        self._winding = True
        IdleRanks(
            self._loop,
            [rank for rank in self._ranks if rank.slot.rank < self._plan.world_size],
            not self._plan.script_is_python,
            self._deadlines.idle_s,
            self._deadlines.failfast_grace_s,
            self._addresses,
            lambda: self._stopping or self._over,
            self._events.ranks_note,
        ).begin()

    def signal(self) -> None:
        """SIGTERM to every script that still runs; what has not started will not start."""
        for rank in self._begin_stop(time.monotonic()):
            self._terminate(rank)
        self._check_gone()

    def stop(self) -> None:
        """The same for a stop from outside. If its signal reaches every process, what ended a
        moment ago is the stop's too, and no script is to have a second one: those that the signal
        has not reached within the moment are sent it."""
        hold_s = self._deadlines.stop_hold_s
        if not hold_s:
            self.signal()
            return
        now = time.monotonic()
        running = self._begin_stop(now)
        self._failures.give_to_stop(self._ranks, now)

        def end_the_rest() -> None:
            for rank in running:
                if rank.runs and rank.handle is not None and not rank.handle.signalled:
                    self._terminate(rank)

        self._loop.after(min(hold_s, self._deadlines.stop_grace_s / 2), end_the_rest)
        self._check_gone()

    def _begin_stop(self, now: float) -> list[Rank]:
        """Those that run and are to end from here on."""
        self._stopping = True
        found = []
        for rank in self._ranks:
            if rank.handle is None:
                rank.gone = True
            elif not rank.handle.ended and (self._by_group or not rank.handle.has_died):
                rank.signalled_s = now
                found.append(rank)
        if not any(rank.handle for rank in self._ranks):
            self.launching.kill()
        return found

    def _terminate(self, rank: Rank) -> None:
        assert rank.handle is not None
        rank.handle.signal(signal.SIGTERM, self._by_group)

    @property
    def _by_group(self) -> bool:
        return self._plan is not None and not self._plan.script_is_python

    def kill(self) -> None:
        """SIGKILL to everything below the shims of this host."""
        self._stopping = True
        now = time.monotonic()
        for rank in self._ranks:
            if rank.handle is None:
                rank.gone = True
                continue
            if not rank.handle.ended:
                rank.killed = True
                rank.signalled_s = rank.signalled_s or now
            rank.kill()
        self._servers.kill()
        self._loop.after(1.0, self._pump.abandon)
        self._check_gone()

    def give_up(self) -> None:
        """Killed ranks took too long to go: reports the ends that are known."""
        self._report_gone()

    def release(self) -> None:
        """The verdict is there: shims end, and with them the launcher."""
        self._over = self._released = True
        for rank in self._ranks:
            rank.release()
        self._servers.release()

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
        """A shim of this host is there and waits for its order."""
        if self._plan is None or self._stopping or self._released:
            turn_away(handle, out_fd, err_fd)
            return
        auxiliary = self._auxiliary_of(handle)
        if auxiliary is not None:
            auxiliary.start(handle, out_fd, err_fd)
            return
        rank = None if self._over else self._rank_of(handle)
        if rank is None:
            turn_away(handle, out_fd, err_fd)
            return
        if not self._agents:
            handle.drop_agent()
        handle.debug = self._debug.of(rank.slot.rank)
        script = self._plan.script
        at_start = {**self._at_start, **self.launching.shared}
        environ = self._plan.rank_environment(rank.slot.rank, handle.environ, at_start)
        streams = [self._stream(rank, out_fd, "out", 1), self._stream(rank, err_fd, "err", 2)]
        rank.begin(handle, self._pump, streams, script.argv, environ, script.cwd)

    def exited_before_register(self, role: str) -> None:
        """A shim of this host ended before it registered: nothing will ever stand for its rank,
        or for a server that ranks of other hosts may need."""
        if not self._stopping and not self._released:
            what, fix = NEVER_STARTED
            self._failures.error(launch_error(f"{what} ({role} on {self._host})", fix))

    def rank_started(self, rank: Rank) -> None:
        assert rank.handle is not None
        facts = {"pid": rank.handle.pid, "pid_namespace": pid_namespace()}
        size = 0 if self._plan is None else self._plan.world_size
        self._recorder.event("rank_started", rank.slot.rank, world_size=size, **facts)
        self._report_started()

    def rank_lost_shim(self, rank: Rank) -> None:
        lost = rank.handle is not None and rank.handle.lost_shim
        if lost and self._plan is not None and self._plan.ends.peer_loss_exit_codes:
            self._loop.after(SHIM_S, lambda: self._report_lost_shim(rank))

    def rank_ended(self, rank: Rank) -> None:
        handle = rank.handle
        assert handle is not None
        stopped = rank.ended_by_us
        self._recorder.event("rank_ended", rank.slot.rank, status=handle.status, stopped=stopped)
        error = never_ran(rank, f"rank {rank.slot.rank} on {self._host}")
        if error is not None:  # not the script's fault, so no failure of the rank's
            self._events.launch_failed(error)

    def rank_spoke(self, rank: Rank) -> None:
        self._failures.rank_spoke(rank)

    def rank_gone(self, rank: Rank) -> None:
        assert self._plan is not None
        last = rank.slot.rank == 0 and self._plan.ends.work_ends is WorkEnds.WITH_RANK_0
        if last and rank.handle is not None and rank.handle.status == 0:
            self.wind_down()
        self._check_gone()

    def _report_started(self) -> None:
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
        from muster.run.child.group_watch import GroupWatch  # short jobs go without

        world = [rank for rank in self._ranks if rank.slot.rank < self._plan.world_size]
        self._watch = GroupWatch(self._loop, world)
        self._watch.look()

    def _report_lost_shim(self, rank: Rank) -> None:
        """A launcher takes the end of a shim for its rank's and ends the job for it. It may have
        ended the shim itself because of a rank (MPI_Abort); that one has reported by now."""
        if not (self._over or self._stopping or rank.ended_s):
            what = f"the process above rank {rank.slot.rank} was killed (on {self._host})"
            fix = "look for what kills processes there: a memory limit, or a person"
            self._failures.error(launch_error(what, fix))

    def _auxiliary_of(self, handle: ShimHandle) -> AuxiliaryProcess | None:
        """The launcher or server that the shim stands for."""
        if handle.role == ROLE:
            return self.launching.auxiliary
        return self._servers.find(handle.role)

    def _rank_of(self, handle: ShimHandle) -> Rank | None:
        """The rank that the shim stands for, or None when there is no such place left."""
        assert self._plan is not None
        _, _, local = handle.role.partition(":")
        if not local and self._plan.launched is not None:
            local = handle.environ.get(self._plan.launched.names.local_rank, "0")
        for rank in self._ranks:
            if str(rank.slot.local_rank) == local and rank.handle is None:
                return None if self.launching.refuses(rank, handle.environ) else rank
        return None

    def _stream(self, rank: Rank, fd: int, name: str, target: int) -> Stream:
        assert self._plan is not None
        number, chosen = rank.slot.rank, self._shown.ranks
        prefix = f"[{self._host}:{number}] ".encode() if self._shown.prefix else b""
        if chosen is not None and not chosen.has(number, self._plan.world_size):
            target = -1
        keep = self._recorder.stream_log(f"rank-{rank.slot.rank}.{name}")
        is_stderr = name == "err"
        return Stream(
            fd, target, prefix, rank.watcher, keep, rank.stream_ended, is_stderr=is_stderr
        )

    def _check_gone(self) -> None:
        if self._over or not all(rank.gone for rank in self._ranks):
            return
        if self.launching.works_on and self.launching.has_unreported_end and not self._stopping:
            for rank in self._ranks:  # it waits for their shims, and is waited for here
                rank.release()
            return
        if self._failures.waits and not self._stopping:
            return
        self._report_gone()

    def _report_gone(self) -> None:
        self._over = True
        well = all(rank.handle is not None and rank.handle.status == 0 for rank in self._ranks)
        found = self._watch.warning() if well and self._watch is not None else ""
        if found:
            self._events.ranks_note(found, "WARNING")
        now = time.monotonic()
        ends = tuple(rank.end(now) for rank in self._ranks if rank.ended_s or rank.killed)
        self._events.ranks_gone(ends, self._failures.of(self._ranks))

    @property
    def of_world(self) -> list[Rank]:
        """The ranks of this host that belong to the world."""
        size = 0 if self._plan is None else self._plan.world_size
        return [rank for rank in self._ranks if rank.slot.rank < size]

    @property
    def all_ran(self) -> bool:
        return all(rank.ran for rank in self._ranks)

    @property
    def all_ended(self) -> bool:
        return all(rank.ended_s for rank in self._ranks)

    @property
    def lost_something(self) -> bool:
        """Whether a rank has ended for what it lost, which is to be reported first."""
        return self._failures.waits_for_cause

    def launcher_gone(self) -> None:
        """The launcher ended without an error; only what else runs is waited for."""
        self._check_gone()
