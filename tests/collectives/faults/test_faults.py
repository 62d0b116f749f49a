"""A rank that dies, freezes, leaves or stays away: every other rank is told its name in time."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.collectives.faults.fault_worker import SHORT_S, WARM
from tests.collectives.support.jobs import End, job
from tests.support.waiting import within

DEATH_S = 5.0  # what F41 promises; how fast it is, benchmarks measure
SLACK_S = 5.0  # "the process ends within its timeout + 5 s" (F40)
NODES = [pytest.param("aaa", id="one node"), pytest.param("aab", id="two nodes")]


@pytest.mark.promise("F41")
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("nodes", NODES)
def test_survivors_of_a_killed_rank_are_told_its_name(nodes: str, victim: int) -> None:
    others = survivors(victim)
    with job("faults.fault_worker", 3, "killed", str(victim), nodes=names(nodes)) as started:
        for rank in others:
            started.wait_for(f"waits-{rank}")
        began = time.monotonic()
        started.mark("strike")
        ends = started.ends(of=others)
        for end in ends:
            said = told(end, "PeerError", victim)
            assert said["failed_at"] - began < within(DEATH_S), said
        assert started.processes[victim].wait(10) == -signal.SIGKILL


@pytest.mark.promise("F41")
@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("nodes", NODES)
def test_a_rank_killed_inside_a_large_sum_is_an_error_and_no_partial_success(
    nodes: str, streams: int
) -> None:
    """Also amid a message that goes in parts over several connections."""
    victim, others = 2, survivors(2)
    given = {"COLLECTIVES_STREAMS": str(streams)}
    with job(
        "faults.fault_worker", 3, "killed_inside", str(victim), nodes=names(nodes), environ=given
    ) as started:
        for rank in range(3):
            started.wait_for(f"busy-{rank}")
        began = time.monotonic()
        started.strike(victim, signal.SIGKILL)
        for end in started.ends(of=others):
            said = told(end, "PeerError", victim)
            assert said["failed_at"] - began < within(DEATH_S), said
            assert "all_reduce sum of 8388608 float32" in said["text"]


@pytest.mark.parametrize("nodes", NODES)
def test_a_frozen_rank_is_a_timeout_that_names_it_and_no_death(nodes: str) -> None:
    victim, others = 1, survivors(1)
    with job("faults.fault_worker", 3, "stopped", str(victim), nodes=names(nodes)) as started:
        for rank in others:
            started.wait_for(f"told-{rank}")
        started.strike(victim, signal.SIGCONT)
        ends = started.ends()
        in_time([told(ends[rank], "CollectiveTimeout", victim) for rank in others])
        assert ends[victim].said["kind"], "the frozen rank itself goes on as if nothing had been"


@pytest.mark.parametrize("nodes", NODES)
def test_a_rank_that_ends_by_an_exception_is_named(nodes: str) -> None:
    victim = 1
    with job("faults.fault_worker", 3, "raises", str(victim), nodes=names(nodes)) as started:
        ends = started.ends()
        assert ends[victim].code == 1
        assert "ValueError: bad batch" in ends[victim].err
        for rank in survivors(victim):
            told(ends[rank], "PeerError", victim)


@pytest.mark.parametrize("nodes", NODES)
def test_a_rank_that_leaves_the_group_is_named(nodes: str) -> None:
    victim, others = 2, survivors(2)
    with job("faults.fault_worker", 3, "closes", str(victim), nodes=names(nodes)) as started:
        for end in started.ends(of=others):
            assert "left" in told(end, "PeerError", victim)["text"]
        started.mark("told")
        assert started.ends(of=[victim])[0].code == 0


@pytest.mark.promise("F40")
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("nodes", NODES)
def test_a_skipped_operation_names_number_and_rank_on_every_survivor(
    nodes: str, victim: int
) -> None:
    others = survivors(victim)
    with job("faults.fault_worker", 3, "skips", str(victim), nodes=names(nodes)) as started:
        all_said = [told(end, "CollectiveTimeout", victim) for end in started.ends(of=others)]
        in_time(all_said)
        for said in all_said:
            assert said["operation"] == WARM + 1
            assert f"operation {WARM + 1}, all_reduce sum of 4096 float32" in said["text"]
            assert f"rank {victim} has not come" in said["text"]
            assert "Fix:" in said["text"] and "Last operations:" in said["text"]
        started.mark("told")
        late = started.ends(of=[victim])[0]
        assert late.said["kind"], "the rank that comes too late must not go on"


def survivors(victim: int) -> list[int]:
    return [rank for rank in range(3) if rank != victim]


def names(nodes: str) -> Sequence[str]:
    """Without names ranks find out by themselves that they share a node."""
    return list(nodes) if len(set(nodes)) > 1 else ()


def told(end: End, kind: str, guilty: int) -> dict[str, Any]:
    """What a rank was told: this error, which names the guilty rank and no other."""
    assert end.code == 0, f"{end.out}\n{end.err}"
    said: dict[str, Any] = end.said
    assert said["kind"] == kind, said
    assert said["ranks"] == [guilty], said
    assert f"rank {guilty}" in said["text"], said
    assert said["group"] == "world"
    assert said["again"] == kind, "a later call has another reason"
    assert said["again_s"] < within(1.0), "a later call of a broken group does not fail at once"
    return said


def in_time(said: Sequence[dict[str, Any]]) -> None:
    """The deadline is the first one's that began: who began later is told by it."""
    began = min(each["failed_at"] - each["took_s"] for each in said)
    for each in said:
        assert each["failed_at"] - began >= SHORT_S * 0.9, said
        assert each["took_s"] < SHORT_S + within(SLACK_S), said
