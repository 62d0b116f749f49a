"""Partitions that a script names itself: `set_partition` and `default_partition`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.partition import Cuts
from muster_modelparallel.shape.units import ModelProfile


class Manual(NamedTuple):
    """Cuts, and the rank of each stage; more stages than ranks where the calls return to a rank."""

    cuts: Cuts
    rank_of: tuple[int, ...]


def manual(
    profile: ModelProfile, partitions: Mapping[str, int], default: int, ranks: int
) -> Manual:
    """`partitions`: of module paths; the innermost that contains a unit counts, else `default`.

    Calls that go round and round through all ranks, or there and back, become stages of a schedule
    with several stages on a rank. Raises PlanError, with the plan, for any other return to a rank,
    a rank without units, a cut between units that must lie together, and a partition of a module
    that lies in a unit with another one.
    """
    of = [_partition(unit.path, partitions, default) for unit in profile.units]
    runs = [
        (rank, [at for at, _ in pairs])
        for rank, pairs in groupby(enumerate(of), lambda one: one[1])
    ]
    order = [rank for rank, _ in runs]
    plan = "; ".join(
        f"{rank}: {profile.units[run[0]].name} to {profile.units[run[-1]].name}"
        for rank, run in runs
    )
    if missing := sorted(set(range(ranks)) - set(order)):
        raise PlanError(
            f"partition {missing[0]} of {ranks} has no units, in the order of calls {plan}",
            f"give modules that forward calls partition {missing[0]}, or use fewer partitions",
        )
    if unknown := sorted(set(order) - set(range(ranks))):
        fix = f"name one of 0 to {ranks - 1}, or set pipeline_parallel_degree"
        raise PlanError(f"there is no partition {unknown[0]}, only {ranks}: {plan}", fix)
    starts = [run[0] for _, run in runs]
    there_and_back = [*range(ranks), *reversed(range(ranks - 1))]
    if order == there_and_back and len(runs[ranks - 1][1]) > 1 and ranks > 1:
        middle = runs[ranks - 1][1]
        starts.insert(ranks, middle[len(middle) // 2])
        order.insert(ranks, ranks - 1)
    elif order != [stage % ranks for stage in range(len(order))] or len(order) % ranks:
        fix = "let the calls go through the partitions in order, or round and round through all"
        raise PlanError(f"the calls return to a partition: {plan}", fix)
    check_cuts(profile, tuple(starts[1:]))
    for unit, rank in zip(profile.units, of, strict=True):
        for path, other in partitions.items():
            if path.startswith(f"{unit.path}.") and other != rank:
                what = f"{path} is on partition {other} and lies in {unit.path}, a unit that is not"
                fix = f"give the whole of {unit.path} one partition"
                raise PlanError(f"{what} cut and is on partition {rank}", fix)
    return Manual(tuple(starts[1:]), tuple(order))


def check_cuts(profile: ModelProfile, cuts: Cuts) -> None:
    """Raises PlanError for cuts between units that must lie on one stage."""
    for one in profile.constraints:
        first, last = min(one.units), max(one.units)
        if any(first < cut <= last for cut in cuts):
            names = f"{profile.units[first].name} and {profile.units[last].name}"
            raise PlanError(f"{names} must lie on one stage: {one.why}", "assign both to one")


def _partition(path: str, partitions: Mapping[str, int], default: int) -> int:
    parts = path.split(".")
    outer = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((partitions[one] for one in outer if one in partitions), default)
