"""A plan made again from what its stages took when they ran.

Units were measured one by one on an idle machine before the first step. In a run they share caches,
cores and memory with others, work on other data, and may lie on ranks of other speed; what was
measured then is the sum of a stage alone, so all its units are taken to differ alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster_modelparallel.shape.choose import evaluate
from muster_modelparallel.shape.partition import partition
from muster_modelparallel.shape.plan import Plan, make_plan
from muster_modelparallel.shape.schedule import Schedule
from muster_modelparallel.shape.simulate import Timeline

Seconds = tuple[float, float]
"""Of a stage, forward and backward of one microbatch."""


def planned_seconds(plan: Plan, microbatches: int) -> list[Seconds]:
    """Of each stage, by the plan, without what is sent."""
    scale = plan.profile.microbatches / microbatches
    of = list(plan.stage_of.values())
    found = [(0.0, 0.0)] * len(plan.stages)
    for unit, stage in enumerate(of):
        forward, backward = found[stage]
        forward += scale * plan.profile.forward_s(unit)
        backward += scale * plan.profile.backward_s(unit)
        found[stage] = forward, backward
    return found


def corrected(
    plan: Plan, schedule: Schedule, seconds: Sequence[Seconds], memory_weight: float = 0.0
) -> tuple[Plan, Timeline, float]:
    """Each unit is taken to cost as much more than planned as its stage did. Gives the best plan
    then, its step, and by how much of the present step that is shorter."""
    planned = planned_seconds(plan, schedule.microbatches)
    factors = [
        tuple(now / then if then else 1.0 for now, then in zip(*pair, strict=True))
        for pair in zip(seconds, planned, strict=True)
    ]
    units = []
    for at, (unit, stage) in enumerate(
        zip(plan.profile.units, plan.stage_of.values(), strict=True)
    ):
        forward, backward = factors[stage]
        units.append(
            replace(
                unit,
                forward_s=forward * plan.profile.forward_s(at),
                backward_s=backward * plan.profile.backward_s(at),
            )
        )
    profile = replace(plan.profile, units=tuple(units), costs="measured")
    now = evaluate(profile, plan.machine, schedule, plan.cuts)
    split = partition(profile, plan.machine, schedule, memory_weight)
    line = evaluate(profile, plan.machine, schedule, split.cuts)
    made = make_plan(
        profile, plan.machine, schedule, split.cuts, line,
        why=f"by the times of a run: {split.why}", replicas=plan.replicas,
    )  # fmt: skip
    return made, line, 1 - line.step_s / now.step_s if now.step_s else 0.0
