"""When each action of a schedule starts and ends, for stages of given costs, and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.schedule import Action, Kind, Schedule

WEIGHT_SHARE = 0.5
"""The share of a backward that computes gradients of weights, which nobody waits for. Assumed."""


class StageCost(NamedTuple):
    """Seconds of one microbatch, what is sent to the neighbours among them; bytes that lie there
    all the time, and those that one microbatch keeps from forward to backward."""

    forward_s: float
    backward_s: float
    static_bytes: int = 0
    saved_bytes: int = 0


class Span(NamedTuple):
    """One action of a rank on the clock of the step."""

    action: Action
    start_s: float
    end_s: float


class Timeline(NamedTuple):
    """A simulated step. `bubble`: the share of all ranks' time in which they wait; with p equal
    stages and m microbatches (p-1)/(m+p-1). `rank_bytes`: the most that each rank holds."""

    step_s: float
    bubble: float
    ranks: tuple[tuple[Span, ...], ...]
    rank_bytes: tuple[int, ...]


def simulate(schedule: Schedule, stages: Sequence[StageCost]) -> Timeline:
    """Each rank does its actions in order, each as soon as what it needs is there."""
    ends, seconds = _ends(schedule, stages), _seconds(stages)
    spans: list[list[Span]] = [[] for _ in schedule.ranks]
    for step, end in zip(schedule.steps, ends[1:], strict=True):
        cost = seconds[step.action.kind][step.action.stage]
        spans[step.rank].append(Span(step.action, end - cost, end))
    step_s = max(ends)
    busy = sum(span.end_s - span.start_s for mine in spans for span in mine)
    bubble = 1 - busy / (step_s * len(spans)) if step_s else 0.0
    return Timeline(step_s, bubble, tuple(map(tuple, spans)), rank_bytes(schedule, stages))


def step_s(schedule: Schedule, stages: Sequence[StageCost]) -> float:
    """The seconds of the step alone."""
    return max(_ends(schedule, stages))


def rank_bytes(schedule: Schedule, stages: Sequence[StageCost]) -> tuple[int, ...]:
    """The most that each rank holds at one time; that depends on no clock."""
    held = []
    for rank, live in enumerate(schedule.live):
        mine = [stages[stage] for stage, of in schedule.rank_of.items() if of == rank]
        saved = (sum(n * one.saved_bytes for n, one in zip(now, mine, strict=True)) for now in live)
        held.append(sum(one.static_bytes for one in mine) + max(saved, default=0))
    return tuple(held)


def _ends(schedule: Schedule, stages: Sequence[StageCost]) -> list[float]:
    """When each step of the schedule ends, after 0.0 for the beginning."""
    if len(stages) != len(schedule.rank_of):
        raise PlanError(f"{schedule.name} has {len(schedule.rank_of)} stages, not {len(stages)}")
    seconds, ends = _seconds(stages), [0.0]
    for (kind, stage, _), _, before, needs in schedule.steps:
        start, there = ends[before], ends[needs]
        ends.append((start if start > there else there) + seconds[kind][stage])
    return ends


def _seconds(stages: Sequence[StageCost]) -> dict[Kind, list[float]]:
    backward = [one.backward_s for one in stages]
    return {
        Kind.FORWARD: [one.forward_s for one in stages],
        Kind.BACKWARD: backward,
        Kind.INPUT_BACKWARD: [(1 - WEIGHT_SHARE) * one for one in backward],
        Kind.WEIGHT_BACKWARD: [WEIGHT_SHARE * one for one in backward],
    }
