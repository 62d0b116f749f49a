"""Schedules as tables, and the simulated step: closed forms, deadlocks, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.schedule import (
    Action,
    Kind,
    Schedule,
    forward_only,
    gpipe,
    one_f_one_b,
)
from muster_modelparallel.shape.simulate import StageCost, simulate, step_s

RANKS = st.integers(1, 9)
MICROBATCHES = st.integers(1, 40)
SECONDS = st.floats(1e-6, 10)


def table(schedule: Schedule) -> list[str]:
    return [" ".join(f"{a.kind.value}{a.microbatch}" for a in rank) for rank in schedule.ranks]


def parse(*ranks: str) -> tuple[tuple[Action, ...], ...]:
    return tuple(tuple(Action(Kind(a[1]), int(a[0]), int(a[2])) for a in r.split()) for r in ranks)


def test_the_tables_by_hand() -> None:
    assert table(gpipe(2, 3)) == ["F0 F1 F2 B0 B1 B2"] * 2
    assert table(gpipe(1, 3, active=2)) == ["F0 F1 B0 B1 F2 B2"]
    assert table(one_f_one_b(3, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert table(forward_only(2, 2)) == ["F0 F1"] * 2


@given(RANKS, MICROBATCHES, SECONDS, SECONDS)
def test_equal_stages_wait_as_the_closed_form_says(p: int, m: int, f: float, b: float) -> None:
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        line = simulate(schedule, [StageCost(f, b)] * p)
        assert line.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)
        assert line.step_s == pytest.approx((m + p - 1) * (f + b))
    assert simulate(forward_only(p, m), [StageCost(f, b)] * p).step_s == pytest.approx(
        (m + p - 1) * f
    )


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), MICROBATCHES)
def test_gpipe_of_uneven_stages_takes_all_once_and_the_slowest_again(
    costs: Sequence[tuple[float, float]], m: int
) -> None:
    line = simulate(gpipe(len(costs), m), [StageCost(*one) for one in costs])
    once, slowest = (sum(map(sum, costs)), sum(max(one) for one in zip(*costs, strict=True)))
    assert line.step_s == pytest.approx(once + (m - 1) * slowest)


@given(RANKS, MICROBATCHES, st.integers(1, 12))
def test_a_stage_keeps_as_many_microbatches_as_the_schedule_says(p: int, m: int, cap: int) -> None:
    stages = range(p)
    for schedule, live in (
        (gpipe(p, m), [m] * p),
        (gpipe(p, m, cap), [min(m, cap)] * p),
        (one_f_one_b(p, m), [min(m, p - stage) for stage in stages]),
        (one_f_one_b(p, m, cap), [min(m, p - stage, cap) for stage in stages]),
        (forward_only(p, m), [0] * p),
    ):
        assert [schedule.peak_live(stage) for stage in stages] == live


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=6), MICROBATCHES)
def test_the_simulated_step_obeys_what_needs_what(
    costs: Sequence[tuple[float, float]], m: int
) -> None:
    schedule = one_f_one_b(len(costs), m)
    stages = [StageCost(*one) for one in costs]
    line = simulate(schedule, stages)
    ends = {span.action: span.end_s for rank in line.ranks for span in rank}
    for rank in line.ranks:
        for before, span in pairwise(rank):
            assert span.start_s >= before.end_s - 1e-9
        for action, start, _ in rank:
            need = action.needs(len(costs) - 1)
            assert need is None or start >= ends[need] - 1e-9
    assert line.step_s == step_s(schedule, stages)
    # nobody can be faster than the slowest stage's own work, nor slower than one after the other
    slowest = max(map(sum, costs))
    assert m * slowest * (1 - 1e-9) <= line.step_s <= m * sum(map(sum, costs)) * (1 + 1e-9)


def test_bytes_of_a_rank_are_the_worst_moment_of_its_order() -> None:
    # two stages on a rank: stage 1 is full when stage 0 keeps one of its two
    order = parse("0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1")
    stages = [StageCost(1, 1, 1000, 10), StageCost(1, 1, 2000, 100)]
    assert simulate(Schedule("own", 2, order), stages).rank_bytes == (3000 + 2 * 10 + 100,)


def test_half_of_a_backward_is_waited_for_where_it_is_split() -> None:
    order = parse("0F0 0B0", "1F0 1I0 1W0")
    line = simulate(Schedule("split", 1, order), [StageCost(1, 2), StageCost(1, 2)])
    assert line.step_s == 1 + 1 + 1 + 2


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        (("0F0 0B0", "1B0 1F0"), "cannot go on: rank 0 waits with 0B0, rank 1 waits with 1B0"),
        (("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), "rank 0 waits with 0B0, rank 1 waits with 1F1"),
        (("0F0 0B0", "1F0"), "is broken: 1B0"),
        (("0F0 0B0", "1F0 1B0 1B0"), "an action or a stage twice"),
        (("0F0", "0B0"), "an action or a stage twice"),
        (("0F0 0W0 0I0",), "cannot go on: rank 0 waits with 0W0"),
    ],
)
def test_what_cannot_run_is_refused(ranks: tuple[str, ...], found: str) -> None:
    with pytest.raises(PlanError, match=found):
        order = parse(*ranks)
        Schedule("own", 1 + max(action.microbatch for rank in order for action in rank), order)


def test_costs_of_another_number_of_stages_are_refused() -> None:
    with pytest.raises(PlanError, match="has 2 stages, not 3"):
        simulate(gpipe(2, 2), [StageCost(1, 1)] * 3)
