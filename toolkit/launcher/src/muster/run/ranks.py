"""The ranks of this host while they run: started below shims, watched, signalled, accounted for.

It tells what happened through `RanksEvents` and decides nothing. Source: protocol.md 4 to 6.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from muster.plan.launchplan import Command, LaunchPlan
from muster.run.companion import LAST_WORDS_S, Companion, launch_trouble, lost_status
from muster.run.logs import Pump, Stream
from muster.run.loop import Loop
from muster.run.messages import RankEnd, Trouble
from muster.run.process import NEVER_STARTED, Nursery, turn_away
from muster.run.rank import Rank, rank_environment
from muster.run.rank_shim import SHARED
from muster.run.record import Recorder
from muster.run.servers import Servers
from muster.run.shortage import not_started
from muster.run.verdict import said_code
from muster.run.wrapped import Wrapped
from muster.spec.errors import LaunchError
from muster.spec.outcome import RankFailure

FAILURES_TOLD = 5  # so many texts fit a frame beside the ends of 1,024 ranks
SHIM_S = 0.25  # how long a rank may take to say why its launcher killed its shim
SETTLE_S = 1.0  # how long ranks may take to say why their launcher gave up


class RanksEvents(Protocol):
    """What the ranks of a host tell; all on the loop's thread."""

    def ranks_started(self, count: int) -> None: ...
    def rank_failed(self, failure: RankFailure) -> None: ...
    def ranks_gone(self, ends: tuple[RankEnd, ...], failures: tuple[RankFailure, ...]) -> None: ...
    def launch_failed(self, trouble: Trouble) -> None: ...
    def ranks_note(self, text: str) -> None: ...


class HostRanks:
    """`clock_offset()`: seconds to add to this host's monotonic clock to get the leader's.
    `memory_note()`: says whether the kernel killed a process for memory, "" when it did not.
    `mask`: hides secrets in what is told of failures."""

    def __init__(
        self,
        host: str,
        loop: Loop,
        nursery: Nursery,
        pump: Pump,
        recorder: Recorder,
        events: RanksEvents,
        drain_s: float,
        prefix: bool,
        clock_offset: Callable[[], float],
        memory_note: Callable[[], str],
        mask: Callable[[str], str],
        idle_s: float,
    ) -> None:
        self._host = host
        self._loop = loop
        self._nursery = nursery
        self._pump = pump
        self._recorder = recorder
        self._events = events
        self._drain_s = drain_s
        self._prefix = prefix
        self._clock_offset = clock_offset
        self._memory_note = memory_note
        self._mask = mask
        self._idle_s = idle_s
        self._plan: LaunchPlan | None = None
        self._ranks: list[Rank] = []
        self._launcher: Companion | None = None  # or the launch daemon
        self._shared: dict[str, str] = {}  # variables of ranks that share a folder in memory
        self._winding = False
        self._stopping = False
        self._over = False  # no rank runs any more
        self._released = False
        self._servers = Servers(
            host,
            loop,
            nursery,
            lambda: self._released or self._stopping,
            events.launch_failed,
            memory_note,
            mask,
        )

    def start(self, plan: LaunchPlan, host: int) -> None:
        """Starts what the plan has for this host. Raises LaunchError when a fork fails."""
        self._plan = plan
        self._ranks = [Rank(slot) for slot in plan.ranks_of(host)]
        self._servers.start(plan.services)
        if plan.launcher is not None:
            self._start_launcher("launcher", plan.launcher)
        elif plan.daemon is None:
            for rank in self._ranks:
                self._nursery.spawn(f"rank:{rank.slot.local_rank}", plan.script.env)

    def start_daemon(self, command: Command) -> None:
        """The leader's launcher asked for this host's part. Raises LaunchError, also when that
        was asked for before."""
        if self._launcher is not None:
            raise LaunchError(
                f"a second launch daemon was asked for on {self._host}",
                "a launch daemon is started once in a job; look at what else runs there",
            )
        if not self._stopping and not self._over:
            self._start_launcher("launch daemon", command)

    def _start_launcher(self, kind: str, command: Command) -> None:
        """Starts it with folders of the job's own, and makes those that its ranks will share."""
        assert self._plan is not None
        folders, names = self._nursery.scratch, self._plan.scratch
        own = {name: folders.files() for name in names.launcher}
        self._shared = {name: folders.memory() for name in names.ranks}
        if self._shared:  # should this process be killed, the launcher's shim removes it
            own[os.fsdecode(SHARED)] = folders.memory()
        command = command._replace(env={**command.env, **own})
        self._launcher = Companion("launcher", kind, command, self._host, self._launcher_ended)
        self._nursery.spawn("launcher", command.env)

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
        if not any(rank.wrapped for rank in self._ranks) and self._launcher is not None:
            self._launcher.kill()
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

    def release(self) -> None:
        """The verdict is there: shims end, and with them the launcher."""
        self._over = self._released = True
        for rank in self._ranks:
            if rank.wrapped is not None:
                rank.wrapped.release()
        self._servers.release()

    def release_launcher(self) -> None:
        """Ends the launcher and all that is left below it."""
        if self._launcher is not None:
            self._launcher.release()

    def hold_back_launcher(self) -> None:
        """The job failed: one that works on after its ranks would take their end for success, and
        another would only take its time."""
        plan = self._plan
        if plan is not None and (plan.launcher_works_on or plan.launcher_lingers):
            self.release_launcher()

    @property
    def launcher_runs(self) -> bool:
        return self._launcher is not None and self._launcher.runs

    @property
    def _launcher_must_end(self) -> bool:
        """Whether its end is still to be told although no rank of this host runs any more."""
        works_on = self._plan is not None and self._plan.launcher_works_on
        untold = self._launcher is not None and not self._launcher.told
        return works_on and untold and not self._stopping

    def registered(self, wrapped: Wrapped, out_fd: int, err_fd: int) -> None:
        """A shim of this host is there and waits for its order."""
        if self._plan is None or self._stopping or self._over:
            turn_away(wrapped, out_fd, err_fd)
            return
        companion = self._companion_of(wrapped)
        if companion is not None:
            shims = self._nursery.variable if companion is self._launcher else ""
            companion.begin(
                wrapped, out_fd, err_fd, self._loop, self._pump, self._recorder, self._prefix, shims
            )
            return
        rank = self._rank_of(wrapped)
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
        wrapped.start(script.argv, {**environ, **self._shared}, script.cwd)

    def unborn(self, role: str) -> None:
        """A shim of this host ended before it registered: nothing will ever stand for its rank."""
        if not self._stopping and not self._over:
            what, fix = NEVER_STARTED
            self._events.launch_failed(launch_trouble(f"{what} ({role} on {self._host})", fix))

    def changed(self, wrapped: Wrapped) -> None:
        """A script of this host started or ended, or its shim is gone."""
        companion = self._companion_of(wrapped)
        if companion is not None:
            companion.changed(self._loop)
            return
        rank = next((rank for rank in self._ranks if rank.wrapped is wrapped), None)
        if rank is None:
            return
        if wrapped.pid and not wrapped.ended and wrapped.connected:
            self._recorder.event("rank_started", rank.slot.rank, pid=wrapped.pid)
            if all(r.wrapped is not None and r.wrapped.pid for r in self._ranks):
                self._events.ranks_started(len(self._ranks))
        elif wrapped.ended and not rank.ended_s:
            self._rank_ended(rank, wrapped)
        elif wrapped.bereft and self._plan is not None and self._plan.lost_statuses:
            self._loop.after(SHIM_S, lambda: self._tell_shim(rank))

    def _tell_shim(self, rank: Rank) -> None:
        """A launcher takes the end of a shim for its rank's and ends the job for it. It may have
        ended the shim itself because of a rank (MPI_Abort); that one has told by now."""
        if not (self._over or self._stopping or rank.ended_s):
            what = f"the process above rank {rank.slot.rank} was killed (on {self._host})"
            fix = "look for what kills processes there: a memory limit, or a person"
            self._events.launch_failed(launch_trouble(what, fix))

    def _companion_of(self, wrapped: Wrapped) -> Companion | None:
        """The launcher or server that the shim stands for."""
        return self._launcher if wrapped.role == "launcher" else self._servers.find(wrapped.role)

    def _rank_of(self, wrapped: Wrapped) -> Rank | None:
        """The rank that the shim stands for, or None when there is no such place left."""
        assert self._plan is not None
        _, _, number = wrapped.role.partition(":")
        local = number or wrapped.environ.get(self._plan.rank_names.local_rank, "0")
        for rank in self._ranks:
            if str(rank.slot.local_rank) == local and rank.wrapped is None:
                return rank if self._fits(rank, wrapped) else None
        return None

    def _fits(self, rank: Rank, wrapped: Wrapped) -> bool:
        """Whether the launcher started the world that was planned (never a silent other size)."""
        assert self._plan is not None
        if not self._plan.launched:
            return True
        names = self._plan.rank_names
        started = wrapped.environ.get(names.rank), wrapped.environ.get(names.world_size)
        planned = str(rank.slot.rank), str(self._plan.world_size)
        if started == planned:
            return True
        self._events.launch_failed(
            launch_trouble(
                f"the launcher started rank {started[0]} of {started[1]} where rank {planned[0]} "
                f"of {planned[1]} was planned",
                "look for variables that change the launcher, such as PET_* or OMPI_MCA_*",
            )
        )
        return False

    def _stream(self, rank: Rank, fd: int, name: str, target: int) -> Stream:
        prefix = f"[{self._host}:{rank.slot.rank}] ".encode() if self._prefix else b""
        keep = self._recorder.keeper(f"rank-{rank.slot.rank}.{name}")

        def ended() -> None:
            self._loop.post(lambda: self._stream_ended(rank))

        return Stream(fd, target, prefix, rank.watcher, keep, ended)

    def _stream_ended(self, rank: Rank) -> None:
        rank.open_streams -= 1
        if rank.ended_s and rank.open_streams == 0:
            self._tell_failure(rank)
            self._rank_gone(rank)

    def _rank_ended(self, rank: Rank, wrapped: Wrapped) -> None:
        rank.ended_s = time.monotonic()
        self._recorder.event("rank_ended", rank.slot.rank, status=wrapped.status)
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
        if rank.wrapped.status:
            rank.told = True
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
        if self._launcher_must_end:
            for rank in self._ranks:  # it waits for their shims, and we wait for it
                if rank.wrapped is not None:
                    rank.wrapped.release()
            return
        self._over = True
        ends = tuple(rank.end() for rank in self._ranks if rank.ended_s)
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
            self._recorder.log_path(f"rank-{rank.slot.rank}.err"),
            self._memory_note,
            self._mask,
            self._plan.lost_statuses,
        )

    def _launcher_ended(self, launcher: Companion) -> None:
        """A launcher that ends before its ranks have is a failure of its own, but for one that
        gives up because of a rank, whose own failure is about to be told."""
        if self._over or self._stopping:
            return
        if all(rank.ended_s for rank in self._ranks) and not (launcher.status and self._works_on):
            self._check_gone()
        elif launcher.status < 0 or not self._all_ran:
            self._tell_launcher(launcher)
        else:  # one that ended well saw no cause: a launch daemon elsewhere may know it
            settle_s = SETTLE_S if launcher.status else 2 * SETTLE_S
            self._loop.after(settle_s, lambda: self._tell_launcher(launcher))

    def _tell_launcher(self, launcher: Companion) -> None:
        if self._over or self._stopping:
            return
        trouble = launcher.never_ran()
        if trouble is None:
            how, words = launcher.how_it_ended(), launcher.words(self._mask)
            if self._all_ran:
                when = "after its ranks" if self._works_on else "while its ranks ran"
                what = f"{how} {when} (on {self._host})"
                code = said_code(launcher.status)
                trouble = Trouble("UserScriptError", code, what, "see its lines below", words)
            else:
                what = f"{how} before all ranks ran (on {self._host})"
                trouble = launch_trouble(what, "see its lines below", words)
        self._events.launch_failed(trouble)

    @property
    def _works_on(self) -> bool:
        return self._plan is not None and self._plan.launcher_works_on

    @property
    def _all_ran(self) -> bool:
        return all(rank.wrapped is not None and rank.wrapped.pid for rank in self._ranks)
