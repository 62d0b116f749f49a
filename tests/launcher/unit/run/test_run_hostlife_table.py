"""The table of states: every event in every state, here and in docs/internals/protocol.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from muster.run.channel import messages as m
from muster.run.job import events as e
from muster.run.job.hostlife import State
from tests.launcher.support.peers.host_states import EVENTS, LATE, PATHS, answer, host_in

# state -> event -> next state and actions; what is not in the table changes nothing at all
TABLE = """
[join]
joined -> stage: BeginStage
not joined -> verdict: WriteOutcome 102
signal -> join: Say
stop -> ended: Send HostEnded
failure elsewhere -> ended: Send HostEnded
leader lost -> verdict: Send HostEnded, WriteOutcome 102
verdict -> verdict: WriteOutcome 0
[stage]
stage done -> plan: Send StagedHost
went wrong -> report: Send Report
signal -> report: Say, Send Stopping
stop -> ended: AbortStage, Send HostEnded
failure elsewhere -> ended: AbortStage, Send HostEnded
leader lost -> verdict: AbortStage, Send HostEnded, WriteOutcome 102
verdict -> verdict: AbortStage, WriteOutcome 0
[plan]
went wrong -> report: Send Report
facts -> plan: MakePlan
planned -> ready: Send Ready
signal -> report: Say, Send Stopping
stop -> ended: Send HostEnded
failure elsewhere -> ended: Send HostEnded
leader lost -> verdict: Send HostEnded, WriteOutcome 102
verdict -> verdict: WriteOutcome 0
[ready]
went wrong -> report: Send Report
go -> spawn: Spawn
signal -> report: Say, Send Stopping
stop -> ended: Send HostEnded
failure elsewhere -> ended: Send HostEnded
leader lost -> verdict: Send HostEnded, WriteOutcome 102
verdict -> verdict: WriteOutcome 0
[spawn]
went wrong -> report: Send Report
daemon asked -> spawn: SpawnDaemon
wind down -> spawn: Say, WindDownRanks
all registered -> watch: Send Registered
rank failed -> report: Send Report
all gone -> ended: Send HostEnded
signal -> report: Say, Send Stopping
stop -> stop: Say, StopRanks
failure elsewhere -> stop: Say, SignalRanks
leader lost -> stop: Say, SignalRanks
verdict -> kill: KillRanks
[watch]
wind down -> watch: Say, WindDownRanks
went wrong -> report: Send Report
rank failed -> report: Send Report
all gone -> ended: Send HostEnded
signal -> report: Say, Send Stopping
stop -> stop: Say, StopRanks
failure elsewhere -> stop: Say, SignalRanks
leader lost -> stop: Say, SignalRanks
verdict -> kill: KillRanks
[report]
went wrong -> report: Send Report
rank failed -> report: Send Report
all gone -> ended: Send HostEnded
signal -> report: Say
stop -> stop: Say, StopRanks
failure elsewhere -> stop: Say, SignalRanks
leader lost -> stop: Say, SignalRanks
verdict -> kill: KillRanks
long time -> stop: Say, SignalRanks
[stop]
all gone -> ended: Send HostEnded
signal -> stop: Say
verdict -> kill: KillRanks
long time -> kill: KillRanks
[kill]
all gone -> ended: Send HostEnded
signal -> kill: Say
verdict -> kill: KillRanks
long time -> kill: GiveUpRanks
[ended]
went wrong -> ended: Send Report
signal -> ended: Say, Send Stopping
leader lost -> verdict: WriteOutcome 102
verdict -> verdict: WriteOutcome 0
[verdict]
signal -> verdict: Say, Send Stopping
files written -> leave
[leave]
signal -> leave: Say, Send Stopping
leader lost -> done: Finish
leave -> done: Finish
long time -> done: Finish
[done]
signal -> done: Say, Send Stopping
"""


def table() -> dict[tuple[str, str], str]:
    cells = {}
    state = ""
    for line in TABLE.strip().splitlines():
        if line.startswith("["):
            state = line.strip("[]")
        else:
            event, _, what = line.partition(" -> ")
            cells[state, event] = what
    return cells


CELLS = [(state, name) for state in State for name in (*EVENTS, LATE)]


@pytest.mark.parametrize(("state", "name"), CELLS, ids=str)
def test_every_event_in_every_state(state: State, name: str | None) -> None:
    assert answer(state, name) == table().get((state.value, name or "long time"), "")


def test_the_table_knows_every_state_event_and_action() -> None:
    assert set(PATHS) == set(State)
    assert {type(event) for event in EVENTS.values()} == set(e.Event.__args__)  # type: ignore[attr-defined]
    told = {type(x.message) for x in EVENTS.values() if isinstance(x, e.FromLeader)}
    assert told == set(m.ToHost.__args__)  # type: ignore[attr-defined]
    kinds = {kind.__name__ for kind in get_args(e.Action) if kind is not e.Do}
    for name in kinds | {action.value for action in e.Do}:
        assert re.search(rf"\b{name}\b", TABLE)
    for state, name in table():
        assert State(state) and (name == "long time" or name in EVENTS)


WORDS = {
    "begin stage": "BeginStage",
    "abort stage": "AbortStage",
    "plan": "MakePlan",
    "spawn": "Spawn",
    "daemon": "SpawnDaemon",
    "wind down": "WindDownRanks",
    "SIGTERM": "SignalRanks",
    "SIGTERM once": "StopRanks",
    "SIGKILL": "KillRanks",
    "give up": "GiveUpRanks",
    "say": "Say",
    "finish": "Finish",
}


def documented() -> dict[tuple[str, str], str]:
    """The cells of the table in docs/internals/protocol.md, in the words of TABLE."""
    page = (Path(__file__).parents[4] / "docs/internals/protocol.md").read_text()
    section = page.partition("\n## States\n")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in section.splitlines() if row.startswith("|")]
    (_, *states), _, *body = [[cell.strip() for cell in row] for row in rows]
    assert all(len(row) == len(states) + 1 for row in body)
    events = ["long time" if row[0] == "deadline" else row[0] for row in body]
    assert len(set(events)) == len(events)
    return {
        (state, event): in_words_of_table(cell, state)
        for event, (_, *cells) in zip(events, body, strict=True)
        for state, cell in zip(states, cells, strict=True)
    }


def in_words_of_table(cell: str, state: str) -> str:
    """`= T:Report` of `report` -> `report: Send Report`; "" for a dot."""
    if cell == ".":
        return ""
    found = re.fullmatch(r"(?:=|\*\*(\w+)\*\*)(?: (.+))?", cell)
    assert found, cell
    told = {"T": "Send", "W": "WriteOutcome"}
    actions = []
    for action in filter(None, (found[2] or "").split(", ")):
        kind, colon, what = action.partition(":")
        actions.append(f"{told[kind]} {what}" if colon else WORDS[action])
    return f"{found[1] or state}: {', '.join(actions)}".rstrip(": ")


def without_what_is_said(cell: str) -> str:
    """A line on the screen beside another action is not documented; one alone is."""
    return cell.replace(": Say, ", ": ")


def test_the_table_of_the_documentation_is_this_one() -> None:
    pages = documented()
    assert set(pages) == {(state.value, name or "long time") for state, name in CELLS}
    tested = {cell: without_what_is_said(table().get(cell, "")) for cell in pages}
    assert pages == tested


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.value)
@pytest.mark.parametrize("first", [*EVENTS, LATE], ids=str)
def test_no_two_events_ever_break_the_machine(state: State, first: str | None) -> None:
    """Every pair of events after every state: no exception, and `done` is the end."""
    for second in (*EVENTS, LATE):
        life = host_in(state)
        life.take(first)
        before = life.machine.state
        life.take(second)
        if before is State.DONE:
            assert life.machine.state is State.DONE
