"""The state machine of one host in a job: events and the time in, actions out.

Every host runs it, the leader too, whose messages to the leader do not leave the process. The
table of states is in docs/internals/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from muster.run.channel import messages as m
from muster.run.channel.messages import HostError, Report, Stop, ToHost
from muster.run.job.events import (
    Action,
    AllGone,
    AllRegistered,
    Do,
    Event,
    FilesWritten,
    FromLeader,
    HostFailed,
    Joined,
    LeaderLost,
    MakePlan,
    NotJoined,
    Planned,
    RankFailed,
    Say,
    Send,
    Signalled,
    SpawnDaemon,
    StageDone,
    WriteOutcome,
)
from muster.run.job.verdict import Loss, from_host_error, lost_host, with_stopped
from muster.types.deadlines import Deadlines
from muster.types.machine import HostFacts
from muster.types.outcome import Failed, Outcome, Stopped


class State(Enum):
    """Where a host is in its job."""

    JOIN = "join"  # not admitted yet
    STAGE = "stage"  # fetching, installing, probing
    PLAN = "plan"  # waiting for the facts of all hosts
    READY = "ready"  # planned, waiting for all hosts to be ready
    SPAWN = "spawn"  # ranks are being started
    WATCH = "watch"  # all ranks run
    REPORT = "report"  # reported a failure or a signal to the leader, waiting for the answer
    STOP = "stop"  # ranks were signalled to end
    KILL = "kill"  # ranks were killed
    ENDED = "ended"  # no rank runs; waiting for the verdict
    VERDICT = "verdict"  # outcome known, files being written
    LEAVE = "leave"  # files written, waiting to be let go
    DONE = "done"


LEADER_GRACE_S = 10.0  # of the leader, before it decides without a host, and for its word to come
_NO_RANKS = frozenset({State.JOIN, State.STAGE, State.PLAN, State.READY})
_AT_WORK = frozenset({State.SPAWN, State.WATCH})
_RANKS_RUN = frozenset({State.SPAWN, State.WATCH, State.REPORT, State.STOP, State.KILL})
_OVER = frozenset({State.VERDICT, State.LEAVE, State.DONE})


class HostLife:
    """The state machine of one host.

    `on` takes an event, `tick` the time; both return the actions to take, in order.
    """

    def __init__(self, name: str, deadlines: Deadlines, now: float) -> None:
        self.state = State.JOIN
        self.outcome: Outcome | None = None
        self.phases: dict[str, float] = {}
        self._name = name
        self._limits = deadlines
        self._entered_s = now
        self._facts: dict[int, tuple[HostFacts, ...]] = {}
        self._stop: Stop | None = None
        self._stop_s = now
        self._wanted: Stop | None = None  # what to do when the leader does not answer a report
        self._agreed: Stop | None = None  # what the leader said, so that all hosts know it
        self._stopped_by = ""  # the signal that asked this host to stop
        self._own: Outcome | None = None  # decided here, because the leader is gone
        self._host_error: HostError | None = None  # found before the join
        self._verdict: Outcome | None = None  # came while ranks still ran
        self._staging = False
        self._before_report = State.JOIN
        self._let_go = False
        self._ends: tuple[m.RankEnd, ...] = ()

    @property
    def is_at_work(self) -> bool:
        """Whether ranks of the job may run and nothing ends it yet: this host's may be through."""
        through = self.state is State.ENDED and self._stop is None
        return self.state is State.WATCH or through

    def on(self, event: Event, now: float) -> list[Action]:
        """The actions that follow from the event. Unexpected events are ignored, never fatal."""
        if isinstance(event, FromLeader):
            return self._on_leader(event.message, now)
        if isinstance(event, AllGone):
            return self._all_gone(event, now) if self.state in _RANKS_RUN else []
        if isinstance(event, Signalled):
            return self._signalled(event.by, now)
        if isinstance(event, LeaderLost):
            return self._leader_lost(event, now)
        if isinstance(event, FilesWritten):
            return self._files_written(now)
        if isinstance(event, NotJoined) and self.state is State.JOIN:
            if self._wanted is not None:
                return self._stopped_alone(self._wanted, now)
            host_error = self._host_error or HostError("ClusterError", 102, event.why, _REACH, "")
            return self._write_alone(from_host_error(host_error), now)
        return self._on_progress(event, now)

    def tick(self, now: float) -> list[Action]:
        """What follows from time alone."""
        waited = now - self._entered_s
        if self.state is State.JOIN:
            unheard = now >= self._stop_s + self._limits.report_ack_s
            return self._stopped_alone(self._wanted, now) if self._wanted and unheard else []
        if self.state is State.REPORT and waited >= self._limits.report_ack_s:
            return self._act_on(self._wanted or Stop(False, "no answer"), now)
        if self.state is State.STOP and now >= self._kill_at():
            self._enter(State.KILL, now)
            return [Do.KILL_RANKS]
        if self.state is State.KILL and waited >= self._drained_after_s():
            return [Do.GIVE_UP_RANKS]  # killed ranks are reported even so
        if self.state is State.ENDED and self._stop is not None and now >= self._verdict_at():
            return self._write_alone(self._own or self._undecided(), now)
        if self.state is State.LEAVE and waited >= self._limits.finish_s:
            return self._finish(now)
        return []

    def files_limit_s(self, now: float) -> float:
        """How long the files of the outcome may take from now on."""
        limits = self._limits
        if self._stop is None or not self._stop.external:
            return limits.finish_s / 2  # the others wait `finish_s` to be let go
        left = self._stop_s + limits.stop_total_s - now
        return max(1.0, min(left - 1, limits.finish_s / 2))

    def _on_progress(self, event: Event, now: float) -> list[Action]:
        """The way of a job that goes well, and what breaks it off on this host."""
        if isinstance(event, HostFailed):
            return self._went_wrong(event.host_error, now)
        if isinstance(event, RankFailed) and self.state in _RANKS_RUN:
            return self._report(Report((event.failure,)), Stop(False, "a rank failed"), now)
        if isinstance(event, Joined) and self.state is State.JOIN:
            return self._joined(now)
        if isinstance(event, StageDone) and self.state is State.STAGE:
            self._staging = False
            self._enter(State.PLAN, now)
            return [Send(m.StagedHost(event.facts))]
        if isinstance(event, Planned) and self.state is State.PLAN:
            self._enter(State.READY, now)
            return [Send(m.Ready(event.digest, event.ends_with_rank0))]
        if isinstance(event, AllRegistered) and self.state is State.SPAWN:
            self._enter(State.WATCH, now)
            return [Send(m.Registered(event.ranks))]
        return []

    def _joined(self, now: float) -> list[Action]:
        """Goes on, unless an error or a signal came before the join."""
        if self._host_error is not None:
            return self._report(Report((), self._host_error), Stop(False, "host_error"), now)
        if self._wanted is not None:
            self._enter(State.REPORT, now)
            return [Send(m.Stopping(self._stopped_by))]
        self._enter(State.STAGE, now)
        self._staging = True
        return [Do.BEGIN_STAGE]

    def _on_leader(self, message: ToHost, now: float) -> list[Action]:
        if isinstance(message, m.Verdict):
            return self._on_verdict(message.outcome, now)
        if isinstance(message, m.Leave):
            return self._finish(now) if self.state is State.LEAVE else self._leave_later()
        if isinstance(message, Stop):
            self._agreed = self._agreed or message
            return self._act_on(message, now)
        if isinstance(message, m.FactsPart) and self.state is State.PLAN:
            self._facts[message.part] = message.hosts
            if len(self._facts) < message.parts:
                return []
            hosts = tuple(host for i in range(message.parts) for host in self._facts[i])
            return [MakePlan(hosts)]
        return self._on_order(message, now)

    def _on_order(self, message: ToHost, now: float) -> list[Action]:
        """What the leader has this host's processes do while all goes well."""
        if isinstance(message, m.Go) and self.state is State.READY:
            self._enter(State.SPAWN, now)
            return [Do.SPAWN]
        if isinstance(message, m.StartDaemon) and self.state is State.SPAWN:
            return [SpawnDaemon(message.asked)]
        if isinstance(message, m.WindDown) and self.state in _AT_WORK:
            return [
                Say("rank 0 has ended well: ranks that do nothing more end"),
                Do.WIND_DOWN_RANKS,
            ]
        return []

    def _went_wrong(self, host_error: HostError, now: float) -> list[Action]:
        self._staging = False
        if self.state is State.JOIN:
            self._host_error = self._host_error or host_error
            return []
        return self._report(Report((), host_error), Stop(False, host_error.message), now)

    def _report(self, report: Report, then: Stop, now: float) -> list[Action]:
        """Report first, act on the answer or after a second."""
        if self._stop is not None or self.state in _OVER:
            return []
        if self.state is State.ENDED:  # a server that ranks of other hosts still need
            return [Send(report)]
        if self.state is State.REPORT:
            return [Send(report)]
        self._before_report = self.state
        self._wanted = then
        self._enter(State.REPORT, now)
        self._stop_s = now
        return [Send(report)]

    def _signalled(self, by: str, now: float) -> list[Action]:
        if self.state is State.JOIN and self._wanted is None:
            # The leader may have admitted this host a moment ago: then it must learn of the stop.
            self._want_to_stop(by, now)
            return [Say(f"{by}: stopping", "WARNING")]
        if self._stop is not None or self.state in (State.JOIN, State.REPORT):
            return [Say(f"{by} again: the job is stopping already", "WARNING")]
        if self.state in _OVER:  # sent all the same: it limits how long the leader stays
            return [Say(f"{by} after the end: the outcome stands", "WARNING"), Send(m.Stopping(by))]
        if self.state is State.ENDED:
            return [Say(f"{by}: stopping", "WARNING"), Send(m.Stopping(by))]
        self._before_report = self.state
        self._want_to_stop(by, now)
        self._enter(State.REPORT, now)
        return [Say(f"{by}: stopping", "WARNING"), Send(m.Stopping(by))]

    def _want_to_stop(self, by: str, now: float) -> None:
        self._stopped_by = by
        self._wanted = Stop(True, f"{by} on {self._name}")
        self._stop_s = now

    def _act_on(self, stop: Stop, now: float) -> list[Action]:
        """Ends what runs on this host; only the first stop counts."""
        if self._stop is not None or self.state in _OVER:
            return []
        before = self._before_report if self.state is State.REPORT else self.state
        self._stop = stop
        if not (self.state is State.REPORT and stop.external):
            self._stop_s = now
        if before is State.ENDED:
            return []
        if before in _NO_RANKS:
            return [*self._end_staging(), *self._all_gone(AllGone((), ()), now)]
        self._enter(State.STOP, now)
        by_signal = stop.external and stop.by.startswith("SIG")
        deed = Do.STOP_RANKS if by_signal else Do.SIGNAL_RANKS
        return [Say(f"stopping the ranks of this host: {stop.by}", "WARNING"), deed]

    def _all_gone(self, event: AllGone, now: float) -> list[Action]:
        if self.state in _OVER or self.state is State.ENDED:
            return []
        self._enter(State.ENDED, now)
        self._ends = event.ranks
        failures = () if self._stop is not None and self._stop.external else event.failures
        ended = m.HostEnded(event.ranks, failures, dict(self.phases), event.digest)
        sent: list[Action] = [Send(ended)]
        if self._verdict is not None:
            return sent + self._write(self._verdict, now)
        if self._own is not None:
            return sent + self._write_alone(self._own, now)
        return sent

    def _leader_lost(self, event: LeaderLost, now: float) -> list[Action]:
        if self.state in _OVER:
            return self._leave_without_leader(now)
        self._own = lost_host(Loss(event.leader, now, event.why))
        if self._agreed is not None and self._agreed.external:
            self._own = Stopped(self._agreed.by)
        if self._host_error is not None:
            self._own = from_host_error(self._host_error)
        if self.state is State.ENDED:
            return self._write_alone(self._own, now)
        return self._act_on(Stop(False, f"lost {event.leader}"), now)

    def _on_verdict(self, outcome: Outcome, now: float) -> list[Action]:
        if self.state in _OVER:
            return []
        if self.state in _RANKS_RUN:
            self._verdict = outcome
            self._stop = self._stop or Stop(False, "the verdict")
            self._enter(State.KILL, now)
            return [*self._end_staging(), Do.KILL_RANKS]
        return [*self._end_staging(), *self._write(outcome, now)]

    def _write_alone(self, outcome: Outcome, now: float) -> list[Action]:
        """An outcome of this host alone: there is no leader to release it."""
        self._let_go = True
        return self._write(with_stopped(outcome, self._ends), now)

    def _stopped_alone(self, wanted: Stop, now: float) -> list[Action]:
        return self._write_alone(Stopped(wanted.by), now)

    def _write(self, outcome: Outcome, now: float) -> list[Action]:
        self._enter(State.VERDICT, now)
        self.outcome = outcome
        return [WriteOutcome(outcome)]

    def _files_written(self, now: float) -> list[Action]:
        if self.state is not State.VERDICT:
            return []
        self._enter(State.LEAVE, now)
        return self._finish(now) if self._let_go else []

    def _end_staging(self) -> list[Action]:
        actions: list[Action] = [Do.ABORT_STAGE] if self._staging else []
        self._staging = False
        return actions

    def _leave_without_leader(self, now: float) -> list[Action]:
        """The leader went away when the outcome was known: what is left is to write and go."""
        self._let_go = True
        return self._finish(now) if self.state is State.LEAVE else []

    def _leave_later(self) -> list[Action]:
        self._let_go = True
        return []

    def _finish(self, now: float) -> list[Action]:
        self._enter(State.DONE, now)
        return [Do.FINISH]

    def _undecided(self) -> Outcome:
        """The leader is there but gave no verdict in time."""
        if self._stop is not None and self._stop.external:
            return Stopped(self._stop.by)
        return Failed(102, "ClusterError: the leader gave no verdict in time", _REACH)

    def _kill_at(self) -> float:
        limits = self._limits
        external = self._stop is not None and self._stop.external
        return self._stop_s + (limits.stop_grace_s if external else limits.failfast_grace_s)

    def _drained_after_s(self) -> float:
        """How long killed ranks may take to end; in an external stop the time is counted."""
        limits = self._limits
        if self._stop is not None and self._stop.external:
            return max(0.0, limits.stop_drain_s - limits.stop_grace_s)
        return limits.drain_s + 1

    def _verdict_at(self) -> float:
        limits = self._limits
        if self._stop is not None and self._stop.external:
            # later than the leader, which decides at `stop_verdict_s`, and in time to write
            return self._stop_s + (limits.stop_verdict_s + limits.stop_total_s) / 2
        # the leader's own time begins when it has reached, or lost, the last host
        waits_s = max(limits.finish_s, limits.lost_after_s + LEADER_GRACE_S)
        return self._stop_s + limits.failfast_grace_s + limits.drain_s + waits_s

    def _enter(self, state: State, now: float) -> None:
        self.phases[self.state.value] = self.phases.get(self.state.value, 0.0) + (
            now - self._entered_s
        )
        self.state = state
        self._entered_s = now


_REACH = "look at the leader's log, and whether its control port can be reached from this host"


def phase_lines(phases: Mapping[str, float]) -> str:
    """Where the time went: `stage 0.4 s, watch 38.2 s`; states of under 50 ms are left out."""
    return ", ".join(f"{name} {took:.1f} s" for name, took in phases.items() if took >= 0.05)
