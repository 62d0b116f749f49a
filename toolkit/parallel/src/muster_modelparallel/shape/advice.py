"""What would make a plan faster or smaller, in sentences with figures."""

from __future__ import annotations

from math import ceil

from muster_modelparallel.shape.costs import Ranges
from muster_modelparallel.shape.partition import MOST_NOISE
from muster_modelparallel.shape.plan import Plan


def advice(plan: Plan) -> tuple[str, ...]:
    """The most useful first; empty where nothing stands out."""
    ranges = Ranges(plan.profile, plan.machine, plan.microbatches)
    found = (_heavy_unit(plan, ranges), _balance(plan, ranges), _bubble(plan), _memory(plan))
    return tuple(filter(None, (*found, _relays(plan, ranges), *_ties(plan), _costs(plan))))


def _heavy_unit(plan: Plan, ranges: Ranges) -> str:
    seconds = [ranges.compute_s(at, at + 1) for at in range(ranges.count)]
    most = max(seconds)
    ideal = ranges.total_s / len(plan.stages)
    if len(plan.stages) < 2 or most <= 1.05 * ideal:
        return ""
    unit = plan.profile.units[seconds.index(most)]
    enough = max(1, int(ranges.total_s / most))
    opened = f"open it ({unit.parts} modules inside), " if unit.parts else ""
    return (
        f"{unit.name} is {most / ideal:.1f} ideal stages, and no split makes a stage smaller than "
        f"its largest unit: {opened}split its tensors, or use {enough} stages"
    )


def _balance(plan: Plan, ranges: Ranges) -> str:
    loads = [0.0] * len(plan.rank_bytes)
    for stage, bound in zip(plan.stages, _bounds(plan), strict=True):
        loads[stage.rank] += ranges.load_s(*bound)
    excess = max(loads) * len(loads) / (sum(loads) or 1.0)
    if excess < 1.15:
        return ""
    return f"rank {loads.index(max(loads))} works {excess:.2f} times as long as the mean of all"


def _bubble(plan: Plan) -> str:
    ranks = len(plan.rank_bytes)
    same = [row for row in plan.alternatives if not row.problem and row.pipeline == ranks]
    better = min(same, key=lambda row: row.bubble, default=None)
    if better is None or plan.bubble < 0.15 or better.bubble > 0.8 * plan.bubble:
        return ""
    return (
        f"ranks wait {plan.bubble:.0%} of the step: with {better.microbatches} microbatches and "
        f"{better.schedule} {better.bubble:.0%}"
    )


def _memory(plan: Plan) -> str:
    cap, full = plan.machine.memory_bytes, max(plan.rank_bytes)
    if cap is None or full < 0.9 * cap:
        return ""
    rank = plan.rank_bytes.index(full)
    what = "activation checkpointing, smaller microbatches or sharded optimizer state make room"
    return f"rank {rank} has only {(cap - full) / 2**30:.2f} GiB left: {what}"


def _relays(plan: Plan, ranges: Ranges) -> str:
    seconds = sum(ranges.load_s(a, b) - ranges.compute_s(a, b) for a, b in _bounds(plan))
    share = seconds / (ranges.total_s + seconds or 1.0)
    if share < 0.05:
        return ""
    cut = max(plan.cuts, key=lambda one: ranges.relay_bytes[one])
    name = plan.profile.units[cut].name
    size = ranges.relay_bytes[cut] / 2**20
    return f"{share:.0%} of the work is sending; most before {name}: {size:.1f} MiB a microbatch"


def _ties(plan: Plan) -> list[str]:
    sizes = {tie.parameter: tie.bytes for tie in plan.profile.ties}
    return [
        f"{name} lies on stages {', '.join(map(str, stages))}: "
        f"{ceil(sizes[name] / 2**20)} MiB are held {len(stages)} times and reduced once a step"
        for name, stages in plan.tied.items()
    ]


def _costs(plan: Plan) -> str:
    if plan.profile.costs == "measured":
        noise = plan.profile.noise
        again = f"seconds are uncertain by {noise:.0%}: plan again while nothing else runs"
        return again if noise > MOST_NOISE else ""
    return "seconds are estimates from FLOPs: measure on the machine that trains"


def _bounds(plan: Plan) -> list[tuple[int, int]]:
    ends = (*plan.cuts, len(plan.profile.units))
    return list(zip((0, *plan.cuts), ends, strict=True))
