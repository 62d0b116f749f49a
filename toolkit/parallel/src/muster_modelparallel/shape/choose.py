"""Which degree of pipelining, how many microbatches, which schedule: all are tried on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.costs import Machine, Ranges
from muster_modelparallel.shape.partition import MOST_NOISE, Cuts, partition
from muster_modelparallel.shape.plan import Alternative, Plan, make_plan
from muster_modelparallel.shape.schedule import IN_TURNS, Schedule, gpipe, interleaved, one_f_one_b
from muster_modelparallel.shape.simulate import Timeline, simulate
from muster_modelparallel.shape.units import ModelProfile

Maker = Callable[[int, int], Schedule]
"""Makes the schedule for so many ranks and microbatches; PlanError if there is none."""

MAKERS: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {"1F1B": one_f_one_b, "GPipe": gpipe}
)
"""By name; each also takes how many microbatches are active at most."""

CHUNKS = 2
"""The stages of each rank whose stages come by in turns."""


def choose(
    profile: ModelProfile,
    machine: Machine,
    ranks: int,
    *,
    pipelines: Iterable[int] = (),
    microbatches: Iterable[int] = (),
    makers: Mapping[str, Maker] = MAKERS,
    memory_weight: float = 0.0,
    tries_turns: bool = False,
) -> tuple[Plan, Timeline]:
    """The plan that trains a batch soonest on all `ranks`, whose `alternatives` are all that were
    tried. Left out, `pipelines` are all that divide the ranks, `microbatches` 1, 2, 4 and 8 for
    each rank of a pipeline. Each replica reads its own batch of the profile's size. tries_turns:
    the best is also tried with CHUNKS stages on each rank, which must gain more than the noise.
    Raises PlanError if nothing is possible, with the first reason.
    """
    degrees = list(pipelines) or [one for one in range(1, ranks + 1) if ranks % one == 0]
    counts = list(microbatches)
    if wrong := [degree for degree in degrees if ranks % degree]:
        raise PlanError(f"a pipeline of {wrong[0]} ranks does not divide {ranks}")
    rows = [
        _tried(
            Alternative(degree, ranks // degree, count, name),
            profile,
            machine,
            maker,
            memory_weight,
        )
        for degree in degrees
        for count in counts or [degree * times for times in (1, 2, 4, 8)]
        for name, maker in makers.items()
    ]
    possible = [row for row in rows if not row.problem]
    if not possible:
        raise PlanError(rows[0].problem)
    best = min(possible, key=lambda row: row.batch_s)
    # with the best alone: schedules of twice as many stages take long to try
    if tries_turns and best.pipeline > 1:
        makers = {**makers, IN_TURNS: in_turns}
        asked = Alternative(best.pipeline, best.replicas, best.microbatches, IN_TURNS)
        turns = _tried(asked, profile, machine, in_turns, memory_weight)
        rows.append(turns)
        noise = min(profile.noise, MOST_NOISE)
        if not turns.problem and turns.batch_s < (1 - noise) * best.batch_s:
            best = turns
    schedule = makers[best.schedule](best.pipeline, best.microbatches)
    split = partition(profile, machine, schedule, memory_weight)
    timeline = evaluate(profile, machine, schedule, split.cuts)
    rows[rows.index(best)] = _priced(best, profile, machine, timeline)
    plan = make_plan(
        profile,
        machine,
        schedule,
        split.cuts,
        timeline,
        why=split.why,
        replicas=best.replicas,
        alternatives=tuple(rows),
    )
    return plan, timeline


def in_turns(ranks: int, microbatches: int) -> Schedule:
    """The maker of that schedule."""
    return interleaved(ranks, microbatches, CHUNKS)


def evaluate(profile: ModelProfile, machine: Machine, schedule: Schedule, cuts: Cuts) -> Timeline:
    """The simulated step of a split, such as one of a plan that was loaded."""
    ranges = Ranges(profile, machine, schedule.microbatches)
    return simulate(schedule, ranges.stages(cuts, schedule.rank_of))


def _tried(
    row: Alternative, profile: ModelProfile, machine: Machine, maker: Maker, memory_weight: float
) -> Alternative:
    """The row with its figures, or with the reason why it is not possible."""
    try:
        schedule = maker(row.pipeline, row.microbatches)
        split = partition(profile, machine, schedule, memory_weight, thorough=False)
    except PlanError as error:
        return replace(row, problem=str(error))
    return _priced(row, profile, machine, evaluate(profile, machine, schedule, split.cuts))


def _priced(
    row: Alternative, profile: ModelProfile, machine: Machine, timeline: Timeline
) -> Alternative:
    # the gradients of an average stage, reduced over the replicas as a ring does it
    size = sum(unit.parameter_bytes for unit in profile.units) / row.pipeline
    reduce_s = 2 * (row.replicas - 1) / row.replicas * size / machine.bandwidth
    return replace(
        row,
        batch_s=(timeline.step_s + reduce_s) / row.replicas,
        bubble=timeline.bubble,
        rank_bytes=max(timeline.rank_bytes),
    )
