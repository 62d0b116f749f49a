"""What is said once a model that is cut has trained for some steps: its stages beside the plan, and
where another plan would gain."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from muster_modelparallel.errors import PlanError
from muster_modelparallel.run.objects import CommGroup, allgather
from muster_modelparallel.run.pipeline.clock import StageTimes
from muster_modelparallel.run.session import Session
from muster_modelparallel.shape.correct import Seconds, corrected, planned_seconds
from muster_modelparallel.shape.plan import Plan
from muster_modelparallel.shape.schedule import Schedule
from muster_modelparallel.wrap.cut.planning import memory_weight, say, write_files

MEASURED_FILE = "model-plan-measured.json"
HEAVY = 1.2
"""A stage of more than this much of the mean is named."""
LEAST_GAIN = 0.05
"""Of a step; with less nobody would run a job again."""


def report(session: Session, plan: Plan, schedule: Schedule, times: StageTimes, steps: int) -> None:
    """Says on rank 0 how the stages of its pipeline did in `steps` steps. Collective over the
    pipeline. The plan that would be better is left beside that of the run."""
    mine = [[stage, *seconds] for stage, seconds in times.stages.items()]
    said = sorted(one for rank in allgather(mine, CommGroup.PP_GROUP) for one in rank)
    if session.mesh.rank or len(said) < len(plan.stages):
        return
    seconds: list[Seconds] = [(forward, backward) for _, forward, backward in said]
    planned = planned_seconds(plan, schedule.microbatches)
    beside = ", ".join(
        f"stage {stage} {1e3 * sum(now):.2f} ({1e3 * sum(then):.2f})"
        for stage, (now, then) in enumerate(zip(seconds, planned, strict=True))
    )
    say(
        f"after {steps} steps, in ms (planned): a microbatch {beside}; "
        f"a step {1e3 * times.step_s:.2f} ({1e3 * plan.step_s:.2f})"
    )
    _advise(session, plan, schedule, seconds)


def _advise(session: Session, plan: Plan, schedule: Schedule, seconds: Sequence[Seconds]) -> None:
    sums = [sum(one) for one in seconds]
    most, mean = max(sums), sum(sums) / len(sums)
    if most <= HEAVY * mean:
        return
    better, line, gain = corrected(plan, schedule, seconds, memory_weight(session))
    if gain < LEAST_GAIN:
        return
    stage = sums.index(most)
    what = f"stage {stage} (rank {session.topology.pp_group(0)[plan.stages[stage].rank]})"
    what = f"{what} is {most / mean:.1f}x the mean"
    folder = os.environ.get("SM_OUTPUT_DATA_DIR")
    if not folder:
        say(f"{what}: other cuts would gain {gain:.0%}; set SM_OUTPUT_DATA_DIR to have their plan")
        return
    file = Path(folder, MEASURED_FILE)
    try:
        write_files(file, better, line)
    except PlanError as error:
        say(f"{what}: other cuts would gain {gain:.0%}, but {error}")
        return
    say(f"{what}: MODELPARALLEL_PLAN_IN={file} would gain {gain:.0%}")
