"""What the collectives say when something is wrong (pure)."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "toolkit" / "parallel" / "src"))

from muster_collectives.runtime.errors import CollectiveTimeout, MismatchError, PeerError
from muster_collectives.runtime.messages import error_of, ranks_text
from muster_collectives.runtime.stragglers import SlowRank, Stragglers, find
from muster_collectives.runtime.types import Code, Description, DType, Failure, Op, RankStatus, Verb

CALLED = Description(4, 100_000, Verb.ALL_REDUCE, DType.F32, Op.SUM, 0)


def test_a_timeout_names_group_operation_size_ranks_and_time() -> None:
    rank_status = (RankStatus.HERE, RankStatus.HERE, RankStatus.MISSING)
    error = error_of(
        Failure(Code.ETIMEOUT, 0, 2, -1, 3.01, CALLED, None, rank_status), "world", 1, 3
    )
    assert isinstance(error, CollectiveTimeout) and isinstance(error, TimeoutError)
    assert error.message == (
        "group 'world', rank 1 of 3, operation 4, all_reduce sum of 100000 float32 "
        "(400000 bytes): rank 2 has not come, after 3.01 s"
    )
    assert (error.ranks, error.operation, error.group) == ((2,), 4, "world")


def test_a_mismatch_names_both_sides_from_each_side() -> None:
    other = replace(CALLED, count=5)
    rank_status = (RankStatus.HERE, RankStatus.DIFFERENT, RankStatus.HERE)

    def text(rank: int, mine: Description, theirs: Description) -> str:
        failure = Failure(Code.EMISMATCH, 0, 1, 0, 0.0, mine, theirs, rank_status)
        error = error_of(failure, "g", rank, 3)
        assert isinstance(error, MismatchError)
        return error.message

    assert "rank 1 called all_reduce sum of 5 float32 (20 bytes), this rank all" in text(
        0, CALLED, other
    )
    assert "rank 0 called all_reduce sum of 100000" in text(1, other, CALLED)
    # found by the rank that differs: what it names is what the third rank called as well
    assert "rank 0 called something else than rank 1" in text(2, other, other)


def test_death_and_leaving_are_told_apart() -> None:
    def text(*rank_status: RankStatus) -> str:
        failure = Failure(Code.EPEER, 0, 0, -1, 0.5, CALLED, None, rank_status)
        error = error_of(failure, "g", len(rank_status) - 1, len(rank_status))
        assert isinstance(error, PeerError)
        return error.message

    assert "rank 0 is dead, after 0.50 s" in text(RankStatus.DEAD, RankStatus.HERE)
    assert "rank 0 has left the group" in text(RankStatus.LEFT, RankStatus.HERE)
    assert "ranks 0 and 1 are dead" in text(RankStatus.DEAD, RankStatus.LEFT, RankStatus.HERE)
    assert ranks_text(range(40)).endswith("15 and 24 more")


@pytest.mark.promise("F36")
def test_a_rank_that_holds_the_others_up_is_found() -> None:
    assert find({1: 30.0, 2: 1.0, 3: 0.5}, 60.0) == SlowRank(1, 2.0)
    assert find({1: 30.0, 2: 29.0}, 60.0) is None  # all wait for all: no straggler
    assert find({1: 3.0, 2: 0.0}, 60.0) is None  # jitter
    assert find({1: 40.0}, 60.0) == SlowRank(1, 3.0)
    assert find({}, 60.0) is None


@pytest.mark.promise("F36")
def test_one_rank_of_a_node_speaks_of_a_straggler_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    said: list[tuple[int, int]] = []
    for rank in range(3):
        for slow in range(3):
            now[0] = 0.0
            watch = Stragglers("g", rank, (0, 1, 2), clock=lambda: now[0])
            for second in range(0, 121, 10):
                now[0] = float(second)
                waits = [second / 2 if each == slow != rank else 0.0 for each in range(3)]
                caplog.clear()
                watch.look(lambda: waits)  # noqa: B023
                if caplog.records:
                    assert f"rank {slow}: steps take 2.00 times" in caplog.text
                    said.append((rank, slow))
    assert said == [(0, 1)] * 2 + [(0, 2)] * 2 + [(1, 0)] * 2
