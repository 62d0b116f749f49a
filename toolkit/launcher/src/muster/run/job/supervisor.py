"""One host's supervisor: the event loop that carries out what the state machine asks for.

It owns the processes, the channel and the log pump of the host from the join to the end, and
returns the job's outcome.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.plan.launchplan import Daemon, Launcher, LaunchPlan, WorkEnds
from muster.run.base.background import BackgroundCall
from muster.run.base.console import Console
from muster.run.base.logs import Pump, pump_error
from muster.run.base.reaper import Reaper
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError, RankEnd, Report, without_secrets
from muster.run.child.orphans import Orphans
from muster.run.child.rank_shim import become_subreaper
from muster.run.child.ranks import HostRanks
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import ShimPool
from muster.run.child.steps import Steps
from muster.run.child.stopped import StoppedShims
from muster.run.job import events as e
from muster.run.job.context import Ending, JobContext, Work, host_error_of, write_and_say
from muster.run.job.endpoints import Endpoint, FollowerEndpoint, LeaderEndpoint
from muster.run.job.figures import Figures
from muster.run.job.hostlife import HostLife, State
from muster.run.job.observing import Observing
from muster.run.job.teardown import Teardown
from muster.run.job.verdict import from_host_error, placed
from muster.types.errors import InstallError, MusterError, StoppedError
from muster.types.machine import HostFacts
from muster.types.masking import Masker
from muster.types.outcome import Outcome, RankFailure, Succeeded, signal_name
from muster.types.values import NamedTuple

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
TICK_S = 0.1
FLUSH_S = 3.0


class Output(NamedTuple):
    """Where lines, blocks and records go, and what hides secrets in them."""

    pump: Pump
    console: Console
    recorder: Recorder
    masker: Masker


def supervise(context: JobContext, work: Work, output: Output, pool: ShimPool) -> Outcome:
    """Runs this host's part of the job to its end and returns the outcome of the job.

    Must be called on the main thread. Leaves no process running, restores signal
    handlers, and never raises for anything that happens to the job. The caller closes `pool`.
    """
    return _Supervisor(context, work, output, pool).run()


class _Supervisor:
    """One host in one job, from the join to the outcome."""

    def __init__(self, context: JobContext, work: Work, output: Output, pool: ShimPool) -> None:
        self._context = context
        self._work = work
        self._pump, self._log, self._recorder, masker = output
        self._mask, self._learn = masker.mask, masker.learn
        self._loop = pool.loop
        self._began_s = time.monotonic()
        self._life = HostLife(context.cluster.me.name, context.deadlines, self._began_s)
        self._queue: deque[Callable[[float], list[e.Action]]] = deque()
        self._busy = False
        self._plan: LaunchPlan | None = None
        self._addresses: frozenset[str] = frozenset()  # of all hosts of the job
        self._at_start: Mapping[str, str] = {}  # variables of ranks that no plan holds
        self._thread: threading.Thread | None = None  # that stages or plans
        self._mask_before: set[Any] = set()
        self._pump_failed = False
        self._notes: tuple[str, ...] = ()  # for the last lines
        self._asked_for: set[str] = set()  # hosts whose launch daemon the launcher has asked for
        self._pool = pool
        self._orphans = Orphans(pool.shims)
        self._steps = Steps(self._loop, pool, self._pump)
        self._endpoint: Endpoint = (
            LeaderEndpoint(self._loop, context, self._happen, self._log, self._recorder)
            if context.cluster.is_leader
            else FollowerEndpoint(self._loop, context, self._happen, self._log, self._recorder)
        )
        self._ranks = HostRanks(
            context.cluster.me.name,
            self._loop,
            self._pool,
            self._pump,
            self._recorder,
            self,
            context.deadlines,
            context.shown,
            lambda: self._endpoint.clock_offset_s,
            context.memory,
            context.around,
            self._mask,
            context.debug,
        )
        self._observing = Observing(
            self._loop, context, self._endpoint, self._ranks, self._recorder, self._log, self._mask,
            lambda: self._plan, lambda: self._life.is_at_work, self._happen,
        )  # fmt: skip
        self._figures = Figures(
            self._loop, self._recorder, self._log, lambda: self._observing.sampler
        )
        pool.serve(self._ranks, self._changed, self._asked)
        self._reaper = Reaper(self._loop, pool.shims.__contains__, self._shim_ended, pool.adopted)
        self._stopped = StoppedShims(
            self._loop,
            lambda: pool.all,
            lambda text: self._log("rank", text, level="WARNING"),
        )
        self._deeds: dict[e.Do, Callable[[], None]] = {
            e.Do.BEGIN_STAGE: lambda: self._guard(self._begin_stage),
            e.Do.ABORT_STAGE: self._steps.abort,
            e.Do.SPAWN: lambda: self._guard(self._spawn),
            e.Do.WIND_DOWN_RANKS: self._ranks.wind_down,
            e.Do.SIGNAL_RANKS: self._ranks.signal,
            e.Do.STOP_RANKS: self._ranks.stop,
            e.Do.KILL_RANKS: self._ranks.kill,
            e.Do.GIVE_UP_RANKS: self._ranks.give_up,
            e.Do.FINISH: lambda: self._endpoint.linger(self._loop.stop),
        }
        self._teardown = Teardown(
            self._loop, pool, self._reaper, self._orphans, self._log, self._write
        )

    def run(self) -> Outcome:
        if os.getpid() != 1:
            become_subreaper()  # as process 1 does, it takes what lost its parent
        before = self._take_signals()
        try:
            self._reaper.look()  # the spare may have ended before signals were handled
            if self._context.host_error is not None:
                self._happen(e.HostFailed(self._context.host_error))
            try:
                self._endpoint.begin()
            except MusterError as error:
                # no peer can be reached: the outcome is this host's alone
                self._happen(e.HostFailed(host_error_of(error, self._mask)))
                self._happen(e.NotJoined(str(error)))
            self._tick()
            self._stopped.begin()
            self._loop.run()
        except Exception as error:
            return self._break_off(error)
        finally:
            self._endpoint.close()
            for number, handler in before.items():
                held = number in self._mask_before  # in this thread; others would take it
                signal.signal(number, signal.SIG_IGN if held else handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
            signal.set_wakeup_fd(-1)
        assert self._life.outcome is not None
        return self._life.outcome

    def _break_off(self, error: Exception) -> Outcome:
        """A defect of muster: everything on this host ends, and the files say so."""
        self._busy = True  # nothing that happens from here on is acted on
        self._observing.end()
        outcome = self._life.outcome
        if outcome is None or isinstance(outcome, Succeeded):
            cluster = self._context.cluster
            host_error = placed(
                host_error_of(error, self._mask), cluster.me.name, len(cluster.hosts)
            )
            outcome = from_host_error(host_error)
            try:
                report = without_secrets(Report((), host_error), self._mask)
                self._endpoint.send(report)  # so that the others name it, and not a loss
            except Exception:
                pass  # the endpoint itself may be what is broken
        self._endpoint.close()
        self._teardown.at_once()
        took = time.monotonic() - self._began_s
        limit_s = self._life.files_limit_s(time.monotonic())
        write_and_say(self._work, Ending(outcome, self._plan, {}, took), limit_s)
        return outcome

    def _take_signals(self) -> dict[int, Any]:
        signal.set_wakeup_fd(self._loop.wake_fd, warn_on_full_buffer=False)
        before: dict[int, Any] = {}
        for number in STOP_SIGNALS:
            before[number] = signal.signal(number, self._stop_signal)
        before[signal.SIGCHLD] = signal.signal(
            signal.SIGCHLD, lambda _number, _frame: self._loop.post(self._reaper.look)
        )
        # `train` holds stop signals back until here; once the outcome is written they mean nothing.
        self._mask_before = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return before

    def _stop_signal(self, number: int, _frame: object) -> None:
        name = signal_name(number)
        self._loop.post(lambda: self._happen(e.Signalled(name)))

    def _tick(self) -> None:
        self._endpoint.tick(time.monotonic())
        self._take(self._life.tick)
        if self._pump.failure is not None and not self._pump_failed:
            self._pump_failed = True
            self._happen(e.HostFailed(host_error_of(pump_error(self._pump.failure), self._mask)))
        self._loop.after(TICK_S, self._tick)

    # events

    def _happen(self, event: e.Event) -> None:
        self._take(lambda now: self._life.on(event, now))

    def _take(self, step: Callable[[float], list[e.Action]]) -> None:
        """Takes steps one after the other, also those that arise while one is carried out."""
        self._queue.append(step)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                before = self._life.state
                actions = self._queue.popleft()(time.monotonic())
                if self._life.state is not before:
                    self._recorder.event("phase", name=self._life.state.value)
                for action in actions:
                    self._do(action)
        finally:
            self._busy = False

    def _do(self, action: e.Action) -> None:
        if isinstance(action, e.Send):
            self._endpoint.send(without_secrets(action.message, self._mask))
        elif isinstance(action, e.Say):
            self._log("job", action.text, level=action.level)
        elif isinstance(action, e.MakePlan):
            facts = action.facts
            self._guard(lambda: self._make_plan(facts))
        elif isinstance(action, e.SpawnDaemon):
            asked = action.asked
            self._guard(lambda: self._spawn_daemon(asked))
        elif isinstance(action, e.WriteOutcome):
            self._wrap_up()
        else:
            self._deeds[action]()

    def _guard(self, step: Callable[[], None]) -> None:
        """Any error of a step ends the job, with the error's class and on every host."""
        try:
            step()
        except Exception as error:
            self._happen(e.HostFailed(host_error_of(error, self._mask)))

    # phases

    def _off_loop(self, name: str, work: Callable[[], e.Event]) -> None:
        """Runs what may block on a thread, so that heartbeats go on; what it gives happens."""

        def run() -> None:
            try:
                event = work()
            except StoppedError:
                return
            except BaseException as error:
                event = e.HostFailed(host_error_of(error, self._mask))
                if isinstance(error, InstallError) and self._context.deadlines.stop_hold_s:
                    # its installer may have had a stop signal that this host has yet to hear of
                    time.sleep(self._context.deadlines.stop_hold_s)
            self._loop.post(lambda: self._happen(event))

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def _begin_stage(self) -> None:
        leader = self._endpoint.leader_address
        self._off_loop("stage", lambda: e.StageDone(self._work.stage(self._steps, leader)))

    def _make_plan(self, facts: Sequence[HostFacts]) -> None:
        def plan() -> e.Event:
            made = self._plan = self._work.plan(facts)
            self._at_start = self._work.at_start(made)
            self._addresses = frozenset(host.address for host in facts)
            if self._context.cluster.is_leader:
                self._work.check(made)
            one_host = len(self._context.cluster.hosts) == 1
            ends_with_rank0 = made.ends.work_ends is WorkEnds.WITH_RANK_0
            digest = "" if one_host else made.digest
            names = [host.name for host in self._context.cluster.hosts]
            self._recorder.event("plan", None, digest=digest, **made.in_words(names))
            return e.Planned(digest or "alone", ends_with_rank0)

        self._off_loop("plan", plan)

    def _spawn(self) -> None:
        plan = self._plan
        assert plan is not None
        at_start = {**self._orphans.mark, **self._at_start}
        if plan.secret_variable:
            secret = self._endpoint.job_secret(plan.secret_variable)
            self._learn([secret])
            at_start[plan.secret_variable] = secret
        self._ranks.start(plan, self._context.cluster.current, self._addresses, at_start)

    def _spawn_daemon(self, asked: tuple[str, ...]) -> None:
        from muster.run.child.daemon import daemon_command

        assert self._plan is not None
        leader, starter = self._endpoint.leader_address, self._plan.starter
        daemon = starter if isinstance(starter, Daemon) else None
        command = daemon_command(daemon, asked, leader, self._context.cluster.me.name)
        self._log("launch", "starting the launch daemon that the leader's launcher asked for")
        self._ranks.launching.start_daemon(command)

    def _asked(self, words: tuple[str, ...]) -> str:
        """A child of the launcher asks for the launch daemon of a host; "" when it is passed on."""
        from muster.run.child.daemon import fits

        host, *asked = words or ("",)
        starter = self._plan.starter if self._plan is not None else None
        hosts = starter.daemon_hosts if isinstance(starter, Launcher) else {}
        spent = host in self._asked_for
        known = self._life.state is State.SPAWN and host in hosts and fits(asked)
        if spent or not known:
            host = host[:64]
            again = " again" if spent else ""
            self._log("launch", f"refused to start anything on {host!r}{again}", level="WARNING")
            return f"muster starts nothing on {host!r}{again or ' now'}"
        self._asked_for.add(host)
        self._endpoint.start_daemon(hosts[host], tuple(asked))
        return ""

    # processes

    def _changed(self, handle: ShimHandle) -> None:
        if handle.child is not None:
            handle.child.changed()
        if handle.ended:
            self._loop.post(self._teardown.look)

    def _shim_ended(self, pid: int) -> None:
        self._pool.shim_ended(pid)
        if not self._pool.shims:
            self._loop.post(self._teardown.look)

    def ranks_started(self, count: int) -> None:
        self._happen(e.AllRegistered(count))
        self._observing.begin()

    def rank_failed(self, failure: RankFailure) -> None:
        what = failure.summary or f"status {failure.status}"
        self._log(
            "rank", f"rank {failure.rank} failed: {what}", level="ERROR", status=failure.status
        )
        self._happen(e.RankFailed(failure))

    def ranks_gone(self, ends: tuple[RankEnd, ...], failures: tuple[RankFailure, ...]) -> None:
        self._figures.gather(ends, lambda seen: self._happen(e.AllGone(ends, failures, seen)))

    def launch_failed(self, host_error: HostError) -> None:
        self._happen(e.HostFailed(host_error))

    def ranks_note(self, text: str, level: str = "INFO") -> None:
        self._log("rank", text, level=level)

    # the end

    def _wrap_up(self) -> None:
        """Lets the processes go, makes sure that nothing is left, then writes the files."""
        self._observing.end()
        self._notes = self._stopped.notes
        well = isinstance(self._life.outcome, Succeeded)
        self._teardown.begin(self._ranks, self._thread, well)

    def _write(self) -> None:
        outcome = self._life.outcome
        assert outcome is not None
        self._recorder.event(
            "outcome",
            result=type(outcome).__name__,
            exit_code=outcome.exit_code,
            headline=outcome.headline,
        )
        took = time.monotonic() - self._began_s
        ending = Ending(outcome, self._plan, self._endpoint.ended(), took, self._notes)
        # on a thread: peers receive the outcome however long this disk takes
        limit_s = self._life.files_limit_s(time.monotonic())

        def say() -> None:
            self._say_last(ending, files, limit_s)

        files = BackgroundCall(
            "files", lambda: self._work.write(ending), lambda: self._loop.post(say)
        )
        self._loop.after(limit_s, say)

    def _say_last(self, ending: Ending, files: BackgroundCall[bool], limit_s: float) -> None:
        """Once: the files are written, or had the time for it."""
        if self._life.state is not State.VERDICT:
            return
        if not files.ended(0):
            what = f"a disk does not answer: the files of this host are not written {limit_s:g} s"
            self._log("job", f"{what} after the outcome", level="WARNING")
        self._work.say(ending, files.ended(0) and files.result())
        self._pump.flush(FLUSH_S)
        self._happen(e.FilesWritten())
        self._endpoint.files_written()
