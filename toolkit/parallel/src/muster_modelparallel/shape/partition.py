"""Where to cut a chain of units: the smallest largest stage that fits into memory, exactly.

A cut that is inside a block, that relays several tensors, or away from the equal split, has to earn
more than the uncertainty of the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, islice, pairwise
from math import comb, inf

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.costs import Machine, Ranges
from muster_modelparallel.shape.schedule import Schedule
from muster_modelparallel.shape.simulate import rank_bytes, step_s
from muster_modelparallel.shape.units import ModelProfile

Cuts = tuple[int, ...]

SEVERAL_TENSORS = 0.02
"""What cuts that relay several tensors must gain over the best whose cuts relay one."""

MOST_NOISE = 0.1
"""More than this much of a step is not given away, however uncertain the costs are."""


@dataclass(frozen=True, slots=True)
class CutChoice:
    """Cuts, ascending: stage k holds the units from cut k-1 up to, not with, cut k. `score`: the
    predicted seconds of a step, or the largest share of a stage where memory has a weight. `why`
    it was chosen."""

    cuts: Cuts
    score: float
    why: str


class Balance:
    """The cost of each range of units as a share of the model's: seconds, or with a `memory_weight`
    w of 0 to 1 that much of the bytes, as `optimize` and `memory_weight` of SMP mean it.

    `live`: how many microbatches each stage keeps. `cap`: bytes that each stage may hold.
    """

    def __init__(
        self,
        ranges: Ranges,
        live: Sequence[int],
        cap: float | None = None,
        memory_weight: float = 0.0,
    ) -> None:
        self.ranges, self.live, self.cap = ranges, live, inf if cap is None else cap
        mean_live = round(sum(live) / len(live))
        per_s = (1 - memory_weight) / (ranges.total_s or 1.0)
        per_byte = memory_weight / (ranges.bytes(0, ranges.count, mean_live) or 1.0)
        self._rows = [
            [
                per_s * ranges.load_s(first, end) + per_byte * ranges.bytes(first, end, mean_live)
                for end in range(first + 1, ranges.count + 1)
            ]
            for first in range(ranges.count)
        ]
        self._per_s = per_s

    def cost(self, first: int, end: int) -> float:
        return self._rows[first][end - first - 1]

    def fits(self, stage: int, first: int, end: int) -> bool:
        return self.ranges.bytes(first, end, self.live[stage]) <= self.cap

    def score(self, cuts: Cuts) -> float:
        """The largest stage; infinite if one does not fit."""
        bounds = list(zip((0, *cuts), (*cuts, self.ranges.count), strict=True))
        if not all(self.fits(stage, *bound) for stage, bound in enumerate(bounds)):
            return inf
        return max(self.cost(*bound) for bound in bounds)

    def best(self, allowed: Sequence[int]) -> Cuts | None:
        """The cuts among `allowed`, ascending, whose score is smallest; None if none fits. Among
        equal ones those whose first stages are smallest."""
        ends = [0, *allowed, self.ranges.count]
        # no range costs less than what it computes, which grows with the range
        floor = [self._per_s * self.ranges.compute_s(0, end) for end in ends]
        # rows: the best score of so many stages up to ends[at], and where the last of them begins
        score = [0.0] + [inf] * (len(ends) - 1)
        begins: list[list[int]] = []
        for stage in range(len(self.live)):
            row, begin = [inf] * len(ends), [0] * len(ends)
            for at in range(stage + 1, len(ends)):
                for before in range(at - 1, stage - 1, -1):
                    if floor[at] - floor[before] >= row[at]:
                        break
                    worst = max(score[before], self.cost(ends[before], ends[at]))
                    if worst < row[at] and self.fits(stage, ends[before], ends[at]):
                        row[at], begin[at] = worst, before
            score = row
            begins.append(begin)
        if score[-1] == inf:
            return None
        cuts, at = [], len(ends) - 1
        for begin in reversed(begins[1:]):
            at = begin[at]
            cuts.append(ends[at])
        return tuple(reversed(cuts))


def partition(
    profile: ModelProfile,
    machine: Machine,
    schedule: Schedule,
    memory_weight: float = 0.0,
    thorough: bool = True,
) -> CutChoice:
    """The split whose simulated step is shortest: of all, where they are few, else of that with the
    smallest largest stage and what moving its cuts gains. With a `memory_weight` the largest share
    decides alone. Not `thorough` it takes a twentieth of the time, and prefers no cuts to others.

    Raises PlanError for fewer units than stages, and if nothing fits into the memory cap.
    """
    search = _Search(profile, machine, schedule, memory_weight, 600_000 if thorough else 30_000)
    if len(search.ranges.cuts) < search.stages - 1:
        raise _too_few_units(profile, search.stages, len(search.ranges.cuts) + 1)
    found = search.best(search.ranges.cuts)
    if found is None or found[1] == inf:
        raise _no_room(profile, search.balance, machine.memory_bytes or 0)
    best = CutChoice(*found, "the shortest step that was found")
    return _preferred(profile, search, best) if thorough else best


class _Search:
    """Cuts for one schedule, judged by its simulation, at most so many `actions` of it."""

    def __init__(
        self,
        profile: ModelProfile,
        machine: Machine,
        schedule: Schedule,
        memory_weight: float,
        actions: int,
    ) -> None:
        self.schedule, self.stages = schedule, len(schedule.rank_of)
        self.ranges = Ranges(profile, machine, schedule.microbatches)
        self.cap, self.memory_weight = machine.memory_bytes, memory_weight
        self.tries = actions // len(schedule.steps)
        live = [schedule.peak_live(stage) for stage in range(self.stages)]
        # stages that share a rank share its memory
        share = None if self.cap is None else self.cap // (self.stages // len(schedule.ranks))
        self.balance = Balance(self.ranges, live, share, memory_weight)

    def score(self, cuts: Cuts) -> float:
        """Seconds of the step, or where memory has a weight the largest share of a stage; infinite
        if a rank holds too much."""
        costs = self.ranges.stages(cuts, self.schedule.rank_of)
        if self.cap is not None and max(rank_bytes(self.schedule, costs)) > self.cap:
            return inf
        return self.balance.score(cuts) if self.memory_weight else step_s(self.schedule, costs)

    def best(self, allowed: Sequence[int]) -> tuple[Cuts, float] | None:
        """The best of the cuts among `allowed`, and its score; None if none fits."""
        cuts = self.balance.best(allowed) if len(allowed) >= self.stages - 1 else None
        if cuts is None or self.memory_weight:
            return None if cuts is None else (cuts, self.score(cuts))
        if comb(len(allowed), self.stages - 1) <= self.tries // 5:
            found = min(combinations(allowed, self.stages - 1), key=self.score)
            cuts = found if self.score(found) < _GAIN * self.score(cuts) else cuts
            return cuts, self.score(cuts)
        return _climb(cuts, allowed, self.score, self.tries)


def _preferred(profile: ModelProfile, search: _Search, best: CutChoice) -> CutChoice:
    """The equal split, or one with better cuts, unless the best gains more than their limits."""
    ranges, noise = search.ranges, min(profile.noise, MOST_NOISE)
    whole = [cut for cut in ranges.cuts if cut not in ranges.inside_block]
    single = [cut for cut in ranges.cuts if ranges.tensors[cut] <= 1]
    both, gain = [cut for cut in whole if cut in single], max(noise, SEVERAL_TENSORS)
    equal = equal_cuts(profile, search.stages)
    keep_equal = search.score(equal) <= best.score * (1 + noise)
    tried: list[list[int]] = []
    for allowed, limit, why in (
        (both, gain, "cuts between blocks with one tensor each"),
        (single, SEVERAL_TENSORS, "cuts with one tensor each"),
        (whole, noise, "cuts between blocks"),
        (ranges.cuts, 0.0, ""),
    ):
        if allowed in tried:
            continue
        tried.append(allowed)
        if keep_equal and set(equal) <= set(allowed):
            return CutChoice(
                equal, search.score(equal), f"equal split; no other gains over {noise:.1%}"
            )
        found = search.best(allowed) if allowed != ranges.cuts else None
        if found and found[1] <= best.score * (1 + limit):
            return CutChoice(*found, f"{why}; no others gain over {limit:.1%}")
    return best


_GAIN = 1 - 1e-6
"""Of splits that take equally long the one with the smallest largest stage stands."""


def _climb(
    cuts: Cuts, allowed: Sequence[int], score: Callable[[Cuts], float], tries: int
) -> tuple[Cuts, float]:
    """Moves one cut, or neighbouring cuts together, while that lowers the score."""
    at = [allowed.index(cut) for cut in cuts]
    best = score(cuts)
    moves = [
        (first, end, by)
        for width in range(1, len(cuts) + 1)
        for first in range(len(cuts) + 1 - width)
        for end in (first + width,)
        for by in ((-1, 1, -2, 2) if width == 1 else (-1, 1))
    ]
    fails = 0
    for first, end, by in islice(cycle(moves), tries):
        moved = [*at[:first], *(one + by for one in at[first:end]), *at[end:]]
        fails += 1
        if all(a < b for a, b in pairwise([-1, *moved, len(allowed)])):
            found = score(tuple(allowed[one] for one in moved))
            if found < _GAIN * best:
                best, at, fails = found, moved, 0
        if fails == len(moves):
            break
    return tuple(allowed[one] for one in at), best


def equal_cuts(profile: ModelProfile, stages: int) -> Cuts:
    """Equally many blocks for each stage, what comes before and after them with the first and the
    last; equally many units where there are too few blocks."""
    blocks = [unit.block for unit in profile.units]
    starts = [
        at for at, block in enumerate(blocks) if block and (not at or block != blocks[at - 1])
    ]
    if len(starts) < stages:
        starts = list(range(len(blocks)))
    each, more = divmod(len(starts), stages)
    return tuple(starts[stage * each + min(stage, more)] for stage in range(1, stages))


def _too_few_units(profile: ModelProfile, stages: int, found: int) -> PlanError:
    names = ", ".join(unit.name for unit in profile.units[:12])
    held = ", ".join(f"{sorted(one.units)} by {one.why}" for one in profile.constraints[:3])
    what = f"{profile.model} can be cut into {found} stages, not {stages}: {names}"
    inside = sorted((unit for unit in profile.units if unit.parts), key=lambda unit: -unit.parts)
    opened = ", ".join(f"{unit.name} ({unit.parts} modules)" for unit in inside[:3])
    fix = f"open {opened}, or use fewer stages" if opened else "use fewer stages"
    return PlanError(f"{what}; units held together: {held}" if held else what, fix)


def _no_room(profile: ModelProfile, balance: Balance, cap: int) -> PlanError:
    """What of the split with the smallest largest stage does not fit."""
    ranges, stages = balance.ranges, len(balance.live)
    smallest = Balance(ranges, balance.live, None, memory_weight=1.0).best(ranges.cuts) or ()
    bounds = list(zip((0, *smallest), (*smallest, ranges.count), strict=True))
    sizes = [ranges.bytes(*bound, live) for bound, live in zip(bounds, balance.live, strict=True)]
    where = sizes.index(max(sizes))
    names = [unit.name for unit in profile.units[slice(*bounds[where])]]
    held = f"{names[0]} to {names[-1]}" if names[1:] else names[0]
    what = (
        f"no split into {stages} stages fits into {cap / 2**30:.2f} GiB for each rank: stage "
        f"{where} of the most even one, {held}, needs {sizes[where] / 2**30:.2f} GiB"
    )
    fix = "use more stages, 1F1B, smaller microbatches, activation checkpointing or sharding"
    return PlanError(what, fix)
