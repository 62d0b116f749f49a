"""The table of alternatives, the plan that is chosen from it, and advice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.advice import advice
from muster_modelparallel.shape.choose import choose, evaluate
from muster_modelparallel.shape.costs import Machine
from muster_modelparallel.shape.schedule import gpipe, one_f_one_b
from muster_modelparallel.shape.units import ModelProfile, Tie
from tests.model_parallel.support.profiles import MIB, UNEVEN, chain

FAST = Machine(bandwidth=1e12, latency_s=0.0)


def test_every_degree_count_and_schedule_has_a_row_and_the_soonest_is_chosen() -> None:
    plan, line = choose(chain([1.0] * 8), FAST, 4)
    rows = [(row.pipeline, row.replicas, row.schedule) for row in plan.alternatives]
    assert {row[:2] for row in rows} == {(1, 4), (2, 2), (4, 1)}
    assert len(rows) == 3 * 4 * 2 and {row[2] for row in rows} == {"1F1B", "GPipe"}
    # replicas have no bubble, and here their gradients cost nothing
    assert (plan.replicas, len(plan.stages)) == (4, 1)
    assert plan.step_s == line.step_s == pytest.approx(8.0)


def test_memory_forces_a_pipeline_and_slow_gradients_do_too() -> None:
    profile = chain([1.0] * 8, parameter_bytes=[MIB] * 8)
    plan, _ = choose(profile, Machine(memory_bytes=9 * MIB), 4)
    assert (plan.replicas, len(plan.stages)) == (1, 4) and max(plan.rank_bytes) <= 9 * MIB
    assert [row.problem[:13] for row in plan.alternatives if row.pipeline == 1] == [
        "no split into"
    ] * 8
    slow, _ = choose(profile, Machine(bandwidth=1e5), 2)
    assert (slow.replicas, len(slow.stages)) == (1, 2)


def test_what_is_given_is_kept() -> None:
    plan, line = choose(
        chain([1.0] * 8), FAST, 4, pipelines=[2], microbatches=[6], makers={"GPipe": gpipe}
    )
    assert (plan.replicas, plan.microbatches, plan.schedule) == (2, 6, "GPipe")
    assert len(plan.alternatives) == 1
    assert evaluate(plan.profile, FAST, gpipe(2, 6), plan.cuts) == line


def test_nothing_possible_is_the_first_reason() -> None:
    with pytest.raises(PlanError, match="can be cut into 2 stages, not 4"):
        choose(chain([1.0, 1.0]), FAST, 4, pipelines=[4])
    with pytest.raises(PlanError, match="pipeline of 3 ranks does not divide 4"):
        choose(chain([1.0] * 4), FAST, 4, pipelines=[3])


def advised(profile: ModelProfile, machine: Machine = FAST, counts: Iterable[int] = (4,)) -> str:
    plan, _ = choose(profile, machine, 4, pipelines=[4], microbatches=counts)
    return "\n".join(advice(plan))


def test_a_unit_that_is_heavier_than_a_stage_is_named() -> None:
    profile = chain([1.0] * 12 + [9.0])
    head = replace(profile.units[-1], parts=3)
    text = advised(replace(profile, units=(*profile.units[:-1], head)))
    assert "u12 is 1.7 ideal stages" in text and "open it (3 modules inside)" in text
    assert "or use 2 stages" in text and "rank 3 works 1.71 times as long" in text
    assert "ideal stages" not in advised(chain([1.0] * 12))


def test_microbatches_that_would_shrink_the_bubble_are_named() -> None:
    plan, _ = choose(chain([1.0] * 8), FAST, 4, pipelines=[4], microbatches=[4, 16])
    worse = replace(plan, microbatches=4, bubble=3 / 7)
    assert "ranks wait 43% of the step: with 16 microbatches and 1F1B 16%" in advice(worse)


def test_ties_sending_memory_and_estimates_are_named() -> None:
    tied = replace(chain([1.0] * 8), ties=(Tie("u0.weight", 3 * MIB, (0, 7)),))
    assert "u0.weight lies on stages 0, 3: 3 MiB are held 2 times" in advised(tied)
    thick = chain([1.0] * 8, flow_bytes=10**8)
    assert "of the work is sending; most before u" in advised(thick, Machine(bandwidth=1e9))
    full = chain([1.0] * 8, parameter_bytes=[2**28] * 8)
    text = advised(full, Machine(bandwidth=1e12, memory_bytes=2**31 + 2**20))
    assert "has only 0.00 GiB left" in text
    units = (replace(unit, flops=1e9) for unit in chain([1.0] * 8).units)
    assert "estimates from FLOPs" in advised(ModelProfile("M", tuple(units), costs="flops"))


def test_a_plan_of_a_large_head_is_the_best_there_is() -> None:
    plan, _ = choose(UNEVEN["gpt"], Machine(), 4, pipelines=[4], microbatches=[8])
    best = one_f_one_b(4, 8)
    assert plan.schedule == "1F1B" and len(plan.stages) == len(best.rank_of)


def test_stages_come_by_in_turns_where_that_gains_more_than_the_noise() -> None:
    for noise, gains in ((0.0, True), (0.1, False)):
        profile = chain([1e-2] * 16, noise=noise)
        plan, line = choose(
            profile, Machine(), 4, pipelines=[4], microbatches=[16], tries_turns=True
        )  # fmt: skip
        assert plan.alternatives[-1].schedule == "Interleaved1F1B"
        assert (plan.schedule == "Interleaved1F1B") is gains, plan.alternatives
        assert len(plan.stages) == (8 if gains else 4)
        assert line.step_s == plan.step_s
    slow = Machine(latency_s=1e-2)  # twice as many relays
    plan, _ = choose(profile, slow, 4, pipelines=[4], microbatches=[16], tries_turns=True)
    assert plan.schedule == "1F1B"
