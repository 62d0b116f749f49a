"""The ranks of this host while they run: started below shims, watched, signalled, accounted for.

It tells what happened through `RanksEvents` and decides nothing. Source: protocol.md 4 to 6.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from muster.plan.launchplan import LaunchPlan
from muster.run.evidence import Watcher, last_traceback
from muster.run.logs import Pump, Stream
from muster.run.loop import Loop
from muster.run.messages import RankEnd, Trouble, shortened
from muster.run.process import NEVER_STARTED, Nursery, turn_away
from muster.run.rank import FAILURE_TEXT_BYTES, Rank, rank_environment
from muster.run.record import Recorder
from muster.run.shortage import not_started
from muster.run.verdict import said_code, signal_name
from muster.run.wrapped import Wrapped
from muster.spec.errors import InternalError, LaunchError
from muster.spec.outcome import RankFailure

FAILURES_TOLD = 5  # so many texts fit a frame beside the ends of 1,024 ranks
LAST_WORDS_S = 0.5  # how long a failed rank's output may still come before the failure is told


class RanksEvents(Protocol):
    """What the ranks of a host tell; all on the loop's thread."""

    def ranks_started(self, count: int) -> None: ...
    def rank_failed(self, failure: RankFailure) -> None: ...
    def ranks_gone(self, ends: tuple[RankEnd, ...], failures: tuple[RankFailure, ...]) -> None: ...
    def launch_failed(self, trouble: Trouble) -> None: ...


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
        self._plan: LaunchPlan | None = None
        self._ranks: list[Rank] = []
        self._launcher: Wrapped | None = None
        self._launcher_words = Watcher()
        self._launcher_streams = 0
        self._launcher_told = False
        self._stopping = False
        self._over = False

    def start(self, plan: LaunchPlan, host: int) -> None:
        """Starts what the plan has for this host. Raises LaunchError when a fork fails."""
        self._plan = plan
        self._ranks = [Rank(slot) for slot in plan.ranks_of(host)]
        if plan.launcher is not None:
            self._nursery.spawn("launcher", plan.launcher.env)
            return
        for rank in self._ranks:
            self._nursery.spawn(f"rank:{rank.slot.local_rank}", plan.script.env)

    def signal(self) -> None:
        """SIGTERM to every script that still runs; what has not started will not start."""
        self._stopping = True
        now = time.monotonic()
        group = self._plan is not None and not self._plan.script_is_python
        for rank in self._ranks:
            if rank.wrapped is None:
                rank.gone = True
            elif not rank.wrapped.ended:
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
        self._loop.after(1.0, self._pump.abandon)
        self._check_gone()

    def release(self) -> None:
        """The verdict is there: shims end, and with them the launcher."""
        self._over = True
        for rank in self._ranks:
            if rank.wrapped is not None:
                rank.wrapped.release()

    def release_launcher(self) -> None:
        """Ends the launcher and all that is left below it."""
        if self._launcher is not None:
            self._launcher.release()

    def hold_back_launcher(self) -> None:
        """The job failed: one that works on after its ranks would take their end for success."""
        if self._plan is not None and self._plan.launcher_works_on:
            self.release_launcher()

    @property
    def launcher_runs(self) -> bool:
        return self._launcher is not None and not self._launcher.ended

    @property
    def _launcher_must_end(self) -> bool:
        """Whether its end is still to be told although no rank of this host runs any more."""
        works_on = self._plan is not None and self._plan.launcher_works_on
        untold = self._launcher is not None and not self._launcher_told
        return works_on and untold and not self._stopping

    def registered(self, wrapped: Wrapped, out_fd: int, err_fd: int) -> None:
        """A shim of this host is there and waits for its order."""
        if self._plan is None or self._stopping or self._over:
            turn_away(wrapped, out_fd, err_fd)
            return
        if wrapped.role == "launcher":
            self._begin_launcher(wrapped, out_fd, err_fd, self._plan)
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
        wrapped.start(script.argv, rank_environment(self._plan, wrapped.environ), script.cwd)

    def unborn(self, role: str) -> None:
        """A shim of this host ended before it registered: nothing will ever stand for its rank."""
        if not self._stopping and not self._over:
            what, fix = NEVER_STARTED
            self._launch_failed(f"{what} ({role} on {self._host})", fix)

    def changed(self, wrapped: Wrapped) -> None:
        """A script of this host started or ended, or its shim is gone."""
        if wrapped is self._launcher:
            if wrapped.ended and self._launcher_streams:
                self._loop.after(LAST_WORDS_S, self._tell_launcher)
            elif wrapped.ended:
                self._tell_launcher()
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

    def _rank_of(self, wrapped: Wrapped) -> Rank | None:
        """The rank that the shim stands for, or None when there is no such place left."""
        _, _, number = wrapped.role.partition(":")
        local = number or wrapped.environ.get("LOCAL_RANK", "0")
        for rank in self._ranks:
            if str(rank.slot.local_rank) == local and rank.wrapped is None:
                return rank if self._fits(rank, wrapped) else None
        return None

    def _fits(self, rank: Rank, wrapped: Wrapped) -> bool:
        """Whether the launcher started the world that was planned (never a silent other size)."""
        assert self._plan is not None
        if self._plan.launcher is None:
            return True
        started = wrapped.environ.get("RANK"), wrapped.environ.get("WORLD_SIZE")
        planned = str(rank.slot.rank), str(self._plan.world_size)
        if started == planned:
            return True
        self._launch_failed(
            f"the launcher started rank {started[0]} of {started[1]} where rank {planned[0]} "
            f"of {planned[1]} was planned",
            "look for variables that change the launcher, such as PET_*",
        )
        return False

    def _launch_failed(self, what: str, fix: str, detail: str = "") -> None:
        self._events.launch_failed(
            Trouble(LaunchError.__name__, LaunchError.exit_code, what, fix, detail)
        )

    def _begin_launcher(self, wrapped: Wrapped, out_fd: int, err_fd: int, plan: LaunchPlan) -> None:
        assert plan.launcher is not None
        self._launcher = wrapped
        prefix = f"[{self._host}:launcher] ".encode() if self._prefix else b""
        for fd, name in ((out_fd, "out"), (err_fd, "err")):
            keep = self._recorder.keeper(f"launcher.{name}")
            target = 1 if name == "out" else 2
            self._launcher_streams += 1
            ended = self._launcher_stream_ended
            self._pump.add(Stream(fd, target, prefix, self._launcher_words, keep, ended))
        environ = {**plan.launcher.env, "MUSTER_SHIM": self._nursery.variable}
        wrapped.start(plan.launcher.argv, environ, plan.launcher.cwd)

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
            self._launch_failed(error.message, error.fix)
        if wrapped.lost:
            rank.told = True
            self._events.launch_failed(_lost_status(f"rank {rank.slot.rank} on {self._host}"))
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
        )

    def _launcher_stream_ended(self) -> None:
        def count() -> None:
            self._launcher_streams -= 1
            if not self._launcher_streams and not self.launcher_runs:
                self._tell_launcher()

        self._loop.post(count)

    def _tell_launcher(self) -> None:
        """Once its last words are there, which say why it ended, or were waited for."""
        if self._launcher is not None and not self._launcher_told:
            self._launcher_told = True
            self._launcher_ended(self._launcher)

    def _launcher_ended(self, launcher: Wrapped) -> None:
        """A launcher that ends before its ranks have is a failure of its own."""
        status = launcher.status or 0
        worked_on = self._plan is not None and self._plan.launcher_works_on
        if self._over or self._stopping:
            return
        if all(rank.ended_s for rank in self._ranks) and not (status and worked_on):
            self._check_gone()
            return
        how = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with {status}"
        name = os.path.basename(_program(self._plan))
        words = last_traceback(self._launcher_words.tail)
        detail = shortened(self._mask(words), FAILURE_TEXT_BYTES, keep_end=True)
        if launcher.lost:
            self._events.launch_failed(_lost_status(f"the launcher {name} on {self._host}"))
            return
        if launcher.lacked:
            error = not_started(f"the launcher {name} on {self._host}", launcher.failed_errno)
            self._launch_failed(error.message, error.fix)
            return
        if launcher.failure:
            how = f"could not be started: {launcher.failure}"
        if all(rank.wrapped is not None and rank.wrapped.pid for rank in self._ranks):
            code = said_code(status)
            when = "after its ranks" if worked_on else "while its ranks ran"
            message = f"the launcher {name} {how} {when} (on {self._host})"
            trouble = Trouble("UserScriptError", code, message, "see its lines below", detail)
            self._events.launch_failed(trouble)
            return
        message = f"the launcher {name} {how} before all ranks ran (on {self._host})"
        self._launch_failed(message, "see its lines below", detail)


def _lost_status(who: str) -> Trouble:
    """A status that somebody else took reads as success: it is a defect instead (protocol.md 5)."""
    what = f"the exit status of {who} was taken by another part of this process"
    fix = "report this with the log: it is a defect of muster, or of what was put into its process"
    return Trouble(InternalError.__name__, InternalError.exit_code, what, fix, "")


def _program(plan: LaunchPlan | None) -> str:
    return plan.launcher.argv[0] if plan is not None and plan.launcher is not None else "launcher"
