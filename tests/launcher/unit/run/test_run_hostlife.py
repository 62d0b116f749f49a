"""One host's state machine: the ways through it, with a clock of the test's own."""

from __future__ import annotations

from itertools import product
from typing import get_args, get_type_hints

import pytest

from muster.run.channel import messages as m
from muster.run.channel.digest import HostDigest
from muster.run.job import events as e
from muster.run.job.hostlife import HostLife, State, phase_lines
from muster.types.deadlines import LOCAL_MODE_STOP, Deadlines
from muster.types.outcome import Failed, Stopped, Succeeded
from tests.launcher.support.peers.host_states import (
    FACTS,
    FAILURE,
    HOST_ERROR,
    PATHS,
    HostUnderTest,
    host_in,
)


def outcome_of(actions: list[e.Action]) -> object:
    (found,) = [action.outcome for action in actions if isinstance(action, e.WriteOutcome)]
    return found


NO_FIELDS = [
    kind
    for kind in (*get_args(e.Event), *get_args(e.Action), *get_args(m.Message))
    if not get_type_hints(kind, localns={"HostDigest": HostDigest}) and kind is not e.Do
]


def test_two_values_without_fields_are_equal_only_if_they_are_of_one_class() -> None:
    assert len(NO_FIELDS) >= 4
    for kind, other in product(NO_FIELDS, NO_FIELDS):
        assert (kind() == other()) is (kind is other), (kind, other)
        assert len({kind(), other()}) == 1 + (kind is not other)


def test_facts_in_parts_are_planned_with_once_in_order() -> None:
    life = host_in(State.PLAN)
    parts = [m.FactsPart(i, 3, (FACTS._replace(host_index=i),)) for i in range(3)]
    assert life.machine.on(e.FromLeader(parts[2]), 0.0) == []
    assert life.machine.on(e.FromLeader(parts[0]), 0.0) == []
    (action,) = life.machine.on(e.FromLeader(parts[1]), 0.0)
    assert isinstance(action, e.MakePlan)
    assert [facts.host_index for facts in action.facts] == [0, 1, 2]


def test_a_host_acts_when_its_report_was_heard_or_after_a_second() -> None:
    for heard in (True, False):
        life = host_in(State.REPORT)
        assert life.wait(0.99) == []
        actions = life.take("failure elsewhere") if heard else life.wait(0.02)
        assert e.Do.SIGNAL_RANKS in actions


@pytest.mark.promise("F04")
def test_ranks_get_the_whole_grace_and_no_more() -> None:
    for name, grace in (("stop", 100.0), ("failure elsewhere", 15.0)):
        life = host_in(State.WATCH)
        life.wait(5000)
        life.take(name)
        assert life.wait(grace - 0.01) == []
        assert life.wait(0.02) == [e.Do.KILL_RANKS]


def test_a_stop_that_arrives_while_a_failure_is_reported_gives_the_whole_grace() -> None:
    """A rank that fails in the very moment of a stop does not cost the others their checkpoint."""
    life = host_in(State.WATCH)
    life.wait(5000)
    life.take("rank failed")
    life.take("stop")
    assert life.machine.state is State.STOP
    assert life.wait(98) == []
    assert life.wait(3) == [e.Do.KILL_RANKS]


def test_the_grace_of_a_stop_counts_from_the_signal() -> None:
    life = host_in(State.WATCH)
    life.take("signal")
    life.wait(0.9)
    life.take("stop")
    assert life.wait(99.2) == [e.Do.KILL_RANKS]


@pytest.mark.promise("F05")
def test_a_second_signal_changes_no_deadline() -> None:
    life = host_in(State.WATCH)
    life.take("stop")
    life.wait(50)
    assert [type(action) for action in life.take("signal")] == [e.Say]
    assert life.wait(49) == []
    assert life.wait(1.1) == [e.Do.KILL_RANKS]


@pytest.mark.promise("F53")
@pytest.mark.parametrize("local", [False, True])
def test_an_external_stop_ends_in_time_though_nothing_answers(local: bool) -> None:
    """Ranks that cannot be killed, no verdict: the times of protocol.md (Stop) hold."""
    limits = Deadlines(**LOCAL_MODE_STOP) if local else Deadlines()
    life = HostUnderTest(limits)
    for name in PATHS[State.WATCH]:
        life.take(name)
    life.take("stop")
    began = life.now
    seen: dict[object, float] = {}
    while life.machine.state is not State.VERDICT:
        assert life.now - began < limits.stop_total_s
        actions = life.wait(0.05)
        if any(action is e.Do.GIVE_UP_RANKS for action in actions):
            actions = life.take("all gone")  # what the supervisor does with it
        for action in actions:
            seen[action if isinstance(action, e.Do) else type(action)] = life.now - began
    assert seen[e.Do.KILL_RANKS] == pytest.approx(limits.stop_grace_s, abs=0.1)
    assert seen[e.Send] <= limits.stop_drain_s + 0.1
    assert limits.stop_verdict_s < seen[e.WriteOutcome] < limits.stop_total_s
    assert life.machine.outcome == Stopped("SIGTERM on algo-1")


def test_a_verdict_while_ranks_run_kills_them_and_is_written() -> None:
    for path in ((), ("stop",), ("failure elsewhere",)):
        life = host_in(State.WATCH)
        for name in path:
            life.take(name)
        assert life.take("verdict") == [e.Do.KILL_RANKS]
        assert life.wait(6.1) == [e.Do.GIVE_UP_RANKS]  # they cannot be killed
        assert outcome_of(life.take("all gone")) == Succeeded()


@pytest.mark.promise("F04")
@pytest.mark.parametrize("local", [False, True])
def test_ranks_that_were_killed_and_do_not_go_are_told_of_and_no_longer_waited_for(
    local: bool,
) -> None:
    limits = Deadlines(**LOCAL_MODE_STOP) if local else Deadlines()
    life = HostUnderTest(limits)
    for name in PATHS[State.WATCH]:
        life.take(name)
    life.take("stop")
    assert life.wait(limits.stop_grace_s) == [e.Do.KILL_RANKS]
    drain_s = limits.stop_drain_s - limits.stop_grace_s
    assert life.wait(drain_s - 0.1) == []
    assert life.wait(0.11) == [e.Do.GIVE_UP_RANKS]
    ends = (m.RankEnd(0, 0, 9.0, True, False), m.RankEnd(1, -9, 9.0, True, True))
    (action,) = life.machine.on(e.AllGone(ends, ()), life.now)
    assert isinstance(action, e.Send) and isinstance(action.message, m.HostEnded)
    assert action.message.ranks == ends
    assert life.machine.state is State.ENDED


@pytest.mark.promise("F06")
def test_a_signal_before_the_join_is_told_to_a_leader_that_admits_a_moment_later() -> None:
    """The leader may have admitted this host when the signal comes; it would wait for it."""
    life = HostUnderTest()
    assert [type(action) for action in life.take("signal")] == [e.Say]
    life.wait(0.5)
    assert life.take("joined") == [e.Send(m.Stopping("SIGTERM"))]
    life.take("stop")
    life.take("verdict")
    assert life.machine.outcome == Succeeded()  # whatever the leader decides


@pytest.mark.promise("F06")
@pytest.mark.parametrize("then", ["not joined", "signal", None])
def test_a_signal_before_the_join_is_the_outcome_when_nobody_admits(then: str | None) -> None:
    life = HostUnderTest()
    life.take("signal")
    if then is not None:
        life.take(then)
    life.wait(Deadlines().report_ack_s + 0.01)
    assert life.machine.outcome == Stopped("SIGTERM on algo-2")


def test_trouble_found_before_the_join_is_told_once_joined() -> None:
    life = HostUnderTest()
    life.machine.on(e.HostFailed(HOST_ERROR), 0.0)
    life.machine.on(e.HostFailed(HOST_ERROR._replace(kind="Later")), 0.0)
    assert life.take("joined") == [e.Send(m.Report((), HOST_ERROR))]


def test_trouble_found_before_the_join_is_the_outcome_when_nobody_hears_it() -> None:
    for name in ("not joined", "leader lost"):
        life = HostUnderTest()
        life.machine.on(e.HostFailed(HOST_ERROR), 0.0)
        life.machine.on(e.HostFailed(HOST_ERROR._replace(kind="Later")), 0.0)
        assert outcome_of(life.take(name)) == Failed(101, "InstallError: pip failed", "")


def test_a_lost_leader_is_the_outcome_once_the_ranks_are_gone() -> None:
    life = host_in(State.WATCH)
    life.take("leader lost")
    actions = life.take("all gone")
    outcome = outcome_of(actions)
    assert isinstance(outcome, Failed)
    assert (outcome.exit_code, outcome.headline) == (
        102,
        "PeerError: lost algo-1 (its port is closed)",
    )
    assert life.take("files written") == [e.Do.FINISH]


def test_the_outcome_of_a_host_alone_counts_its_ranks_that_were_stopped() -> None:
    life = host_in(State.WATCH)
    life.take("leader lost")
    ends = tuple(m.RankEnd(rank, 0, 1.0, stopped=rank > 0, forced=False) for rank in range(3))
    outcome = outcome_of(life.machine.on(e.AllGone(ends, ()), life.now))
    assert isinstance(outcome, Failed)
    assert outcome.stopped_ranks == 2


def test_a_leader_that_is_lost_after_it_announced_a_stop_leaves_a_stopped_job() -> None:
    life = host_in(State.WATCH)
    life.take("stop")
    life.take("leader lost")
    assert outcome_of(life.take("all gone")) == Stopped("SIGTERM on algo-1")


def test_a_stop_that_the_leader_never_heard_does_not_hide_its_loss() -> None:
    life = host_in(State.WATCH)
    life.take("signal")
    life.wait(1.1)  # no answer: it acts on its own
    life.take("leader lost")
    outcome = outcome_of(life.take("all gone"))
    assert isinstance(outcome, Failed)
    assert outcome.exit_code == 102


def test_a_leader_that_is_lost_before_it_lets_go_is_not_waited_for() -> None:
    life = host_in(State.VERDICT)
    life.take("leader lost")
    assert life.take("files written") == [e.Do.FINISH]
    life = host_in(State.VERDICT)
    life.take("leave")
    assert life.take("files written") == [e.Do.FINISH]


def test_ranks_that_fail_after_an_external_stop_are_not_told_as_failures() -> None:
    for name, told in (("stop", ()), ("failure elsewhere", (FAILURE,))):
        life = host_in(State.WATCH)
        life.take(name)
        (action,) = life.machine.on(e.AllGone((), (FAILURE,)), life.now)
        assert isinstance(action, e.Send) and isinstance(action.message, m.HostEnded)
        assert action.message.failures == told


def test_no_verdict_at_all_is_a_cluster_error_after_a_failure() -> None:
    life = host_in(State.ENDED)
    life.take("failure elsewhere")
    assert life.wait(79) == []
    outcome = outcome_of(life.wait(2))
    assert isinstance(outcome, Failed)
    assert outcome.exit_code == 102


def test_an_end_without_a_stop_waits_for_the_others_without_a_limit() -> None:
    life = host_in(State.ENDED)
    assert life.wait(10**6) == []


def test_the_time_of_each_state_is_accounted_for() -> None:
    life = HostUnderTest()
    for name in PATHS[State.WATCH]:
        life.take(name)
        life.wait(2)
    (action,) = life.take("all gone")
    assert isinstance(action, e.Send) and isinstance(action.message, m.HostEnded)
    phases = action.message.phases
    assert set(phases) == {"join", "stage", "plan", "ready", "spawn", "watch"}
    assert sum(phases.values()) == pytest.approx(12)
    assert phase_lines({"join": 0.01, "stage": 1.26, "watch": 38.2}) == "stage 1.3 s, watch 38.2 s"


def test_a_new_life_has_no_outcome() -> None:
    assert HostLife("algo-1", Deadlines(), 0.0).outcome is None
