"""Plans made again from measured stages."""

from __future__ import annotations

import pytest

from muster_modelparallel.shape.choose import choose
from muster_modelparallel.shape.correct import corrected, planned_seconds
from muster_modelparallel.shape.costs import Machine
from muster_modelparallel.shape.schedule import one_f_one_b
from tests.model_parallel.support.profiles import chain


def planned():
    profile = chain([1e-2] * 8)
    plan, _ = choose(profile, Machine(), 2, pipelines=[2], microbatches=[4])
    return plan, one_f_one_b(2, 4)


def test_ranks_that_slow_each_other_lengthen_the_step_and_keep_the_cuts() -> None:
    alone, _ = choose(chain([1e-2] * 8), Machine(), 2, pipelines=[2], microbatches=[4])
    profile = chain([1e-2] * 8).slower(1.5)
    together, _ = choose(profile, Machine(), 2, pipelines=[2], microbatches=[4])
    assert together.cuts == alone.cuts
    assert together.step_s / alone.step_s == pytest.approx(1.5, rel=0.02)


def test_times_as_planned_change_nothing() -> None:
    plan, schedule = planned()
    seconds = planned_seconds(plan, 4)
    assert [sum(one) for one in seconds] == pytest.approx([1e-2, 1e-2])  # of a fourth of the batch
    again, line, gain = corrected(plan, schedule, seconds)
    assert again.cuts == plan.cuts and gain == pytest.approx(0)
    assert line.step_s == pytest.approx(plan.step_s)


def test_units_leave_the_stage_that_takes_longer() -> None:
    plan, schedule = planned()
    (first, second) = planned_seconds(plan, 4)
    slow = (3 * second[0], 3 * second[1])
    again, _, gain = corrected(plan, schedule, [first, slow])
    assert again.cuts == (6,) and plan.cuts == (4,)
    assert 0.15 < gain < 0.35
    forward = [again.profile.forward_s(at) / plan.profile.forward_s(at) for at in (0, 7)]
    assert forward == pytest.approx([1, 3])
