"""Which ranks hold up the others, from when each came to calls in which all wait for all. Pure.

Own time is a step less the waiting: a call goes on once its last member has come, so each other
member has waited since it came itself. Of the waits of a step the longest counts: calls that run
beside the work all show the same delay, and nobody is to be blamed for more than there is.
Communication counts as own time, of all ranks alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from statistics import median, median_low

from muster.run.observe.looks import Arrivals, RankLook
from muster.types.values import NamedTuple

LEAST_FACTOR = 1.1  # below, it is jitter
LEAST_S = 0.002  # what clocks of hosts and /proc cannot tell apart
MOSTLY = 0.75  # of the steps a straggler is slower than the others
LEAST_STEPS = 8


class OwnTime(NamedTuple):
    """Of one rank, in seconds of one step: the median and the 95th percentile."""

    median_s: float
    p95_s: float


class StepPace(NamedTuple):
    """What a job's last steps were like. `own`: by rank; `step_s`: of a whole step; `slow`: the
    ranks that hold up the others, the slowest first; `others_s`: the own time of a usual rank;
    `factor`: how many times as long steps take because of `slow`."""

    own: Mapping[int, OwnTime]
    step_s: float
    slow: tuple[int, ...]
    others_s: float
    factor: float

    @property
    def share(self) -> float:
        """Of a step of the slowest rank, what it takes beyond the others."""
        return 1 - self.others_s / self.own[self.slow[0]].median_s if self.slow else 0.0


def pace_of(looks: Sequence[RankLook]) -> StepPace | None:
    """The pace of the largest group of which all members have said when they came; None where
    there is none, or too few steps."""
    groups: dict[tuple[str, str, tuple[int, ...]], dict[int, Arrivals]] = {}
    for look in looks:
        if (came := look.answer.arrivals) is not None and look.rank in came.ranks:
            groups.setdefault((came.library, came.group, came.ranks), {})[look.rank] = came
    whole = [found for (_, _, ranks), found in groups.items() if len(found) == len(ranks) > 1]
    if not whole:
        return None
    chosen = max(whole, key=len)
    rates = [rate for one in looks if one.rank in chosen and (rate := one.answer.rate)]
    if not rates:
        return None  # it does not report its steps
    least_s = LEAST_S + 2 * max(one.unsure_s for one in chosen.values())
    calls = {rank: dict(one.calls) for rank, one in chosen.items()}
    return _pace(calls, median(rates), least_s)


def _pace(came: Mapping[int, Mapping[int, float]], rate: float, least_s: float) -> StepPace | None:
    """`came`: of each rank the number of a call and when it came to it; `rate`: steps a second;
    `least_s`: what times have to differ by."""
    numbers = sorted(set.intersection(*(set(one) for one in came.values())))
    if len(numbers) <= LEAST_STEPS:
        return None
    goes = [max(one[number] for one in came.values()) for number in numbers]
    calls, took_s = len(numbers) - 1, goes[-1] - goes[0]
    # a script may report any step: 0 or fewer a second, or next to none
    chunk = max(1, round(min(calls, calls / took_s / rate))) if took_s > 0 < rate else calls
    ends = range(chunk, len(numbers), chunk)
    if len(ends) < LEAST_STEPS:
        return None
    own = {}
    for rank, one in came.items():
        waits = [at_s - one[number] for number, at_s in zip(numbers, goes, strict=True)]
        own[rank] = [
            goes[end] - goes[end - chunk] - max(waits[end - chunk + 1 : end + 1]) for end in ends
        ]
    times = {rank: OwnTime(median(found), _p95(found)) for rank, found in own.items()}
    usual_s = median_low([one.median_s for one in times.values()])
    usual = [median_low(step) for step in zip(*own.values(), strict=True)]
    slow = [
        rank
        for rank, one in times.items()
        if _beyond(one.median_s, usual_s, least_s)
        and sum(map(_beyond, own[rank], usual, repeat(least_s))) >= MOSTLY * len(usual)
    ]
    slow.sort(key=lambda rank: -times[rank].median_s)
    # without them, the slowest of the others would set the pace
    rest_s = max(one.median_s for rank, one in times.items() if rank not in slow)
    factor = times[slow[0]].median_s / rest_s if slow and rest_s > 0 else 1.0
    if factor < LEAST_FACTOR:
        slow, factor = [], 1.0
    return StepPace(times, chunk * took_s / calls, tuple(slow), usual_s, factor)


def _beyond(value_s: float, usual_s: float, least_s: float) -> bool:
    return value_s >= LEAST_FACTOR * usual_s and value_s - usual_s >= least_s


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
