"""A host's state machine brought into each of its states, and one event of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.run.channel import messages as m
from muster.run.job import events as e
from muster.run.job.hostlife import HostLife, State
from muster.types.deadlines import Deadlines
from muster.types.machine import HostFacts
from muster.types.outcome import RankFailure, Succeeded

BEGIN_S = 1000.0  # so late that a time forgotten at 0 shows
FACTS = HostFacts(1, "10.0.0.2", "eth0", 8, 4, 0, True, False, "c0de", "1.2", "3.11.7")
FAILURE = RankFailure("algo-2", 1, 1, 5.0, "ValueError: x", "tail")
HOST_ERROR = m.HostError("InstallError", 101, "pip failed", "", "")
LATE = None  # stands for time alone: far beyond every deadline

EVENTS: Mapping[str, e.Event] = {
    "joined": e.Joined(),
    "not joined": e.NotJoined("refused"),
    "stage done": e.StageDone(FACTS),
    "went wrong": e.HostFailed(HOST_ERROR),
    "facts": e.FromLeader(m.FactsPart(0, 1, (FACTS,))),
    "planned": e.Planned("d1gest"),
    "go": e.FromLeader(m.Go()),
    "daemon asked": e.FromLeader(m.StartDaemon(("orted", "-mca"))),
    "wind down": e.FromLeader(m.WindDown()),
    "all registered": e.AllRegistered(2),
    "rank failed": e.RankFailed(FAILURE),
    "all gone": e.AllGone((), ()),
    "signal": e.Signalled("SIGTERM"),
    "stop": e.FromLeader(m.Stop(True, "SIGTERM on algo-1")),
    "failure elsewhere": e.FromLeader(m.Stop(False, "a rank failed")),
    "leader lost": e.LeaderLost("algo-1", "its port is closed"),
    "verdict": e.FromLeader(m.Verdict(Succeeded())),
    "files written": e.FilesWritten(),
    "leave": e.FromLeader(m.Leave()),
}

_WATCH = ("joined", "stage done", "facts", "planned", "go", "all registered")
PATHS: Mapping[State, Sequence[str | None]] = {
    State.JOIN: (),
    State.STAGE: _WATCH[:1],
    State.PLAN: _WATCH[:2],
    State.READY: _WATCH[:4],
    State.SPAWN: _WATCH[:5],
    State.WATCH: _WATCH,
    State.REPORT: (*_WATCH, "rank failed"),
    State.STOP: (*_WATCH, "failure elsewhere"),
    State.KILL: (*_WATCH, "failure elsewhere", LATE),
    State.ENDED: (*_WATCH, "all gone"),
    State.VERDICT: (*_WATCH, "all gone", "verdict"),
    State.LEAVE: (*_WATCH, "all gone", "verdict", "files written"),
    State.DONE: (*_WATCH, "all gone", "verdict", "files written", "leave"),
}


class HostUnderTest:
    """A state machine and its clock."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.now = BEGIN_S
        self.machine = HostLife("algo-2", deadlines or Deadlines(), self.now)

    def take(self, name: str | None) -> list[e.Action]:
        """The actions that follow from the event of that name, or from a very long time."""
        if name is LATE:
            return self.wait(1000)
        return self.machine.on(EVENTS[name], self.now)

    def wait(self, seconds: float) -> list[e.Action]:
        """Lets time pass at once; what follows from it."""
        self.now += seconds
        return self.machine.tick(self.now)


def host_in(state: State) -> HostUnderTest:
    """A life that came into the state on the way of `PATHS`."""
    life = HostUnderTest()
    for name in PATHS[state]:
        life.take(name)
    assert life.machine.state is state
    return life


def shown(action: e.Action) -> str:
    """An action in a word: its class, or what is told."""
    if isinstance(action, e.Send):
        return f"Send {type(action.message).__name__}"
    if isinstance(action, e.WriteOutcome):
        code = action.outcome.exit_code
        return f"WriteOutcome {code}"
    return action.value if isinstance(action, e.Do) else type(action).__name__


def answer(state: State, name: str | None) -> str:
    """What the machine does with an event in a state: `next: action, action`; "" for nothing."""
    life = host_in(state)
    actions = [shown(action) for action in life.take(name)]
    after = life.machine.state
    if after is state and not actions:
        return ""
    return f"{after.value}: {', '.join(actions)}".rstrip(": ")
