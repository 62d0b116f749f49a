"""Times of calls, taken in turns A B C A B C, so that a busy machine slows all of them alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from muster_collectives.tools.bench.cases import Series
from muster_collectives.tools.bench.team import Team

MOST_CALLS = 2000


def measure(
    ranks: Team, calls: Mapping[str, Callable[[], object]], rounds: int, budget_s: float
) -> dict[str, Series]:
    """Collective: every rank calls it with the same names in the same order.

    A call's time is that of the slowest rank. The number of calls in a round is what `budget_s`
    holds for all rounds of a contender together, at least 1.
    """
    count = {name: _calls(ranks, call, budget_s / rounds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            took, used = _round(ranks, call, count[name])
            seconds[name].append(took)
            cpu[name].append(used)
    return {name: Series(tuple(seconds[name]), tuple(cpu[name]), count[name]) for name in calls}


def _calls(ranks: Team, call: Callable[[], object], budget_s: float) -> int:
    call()  # the first makes connections and touches memory
    took, _ = _round(ranks, call, 2)
    return max(1, min(MOST_CALLS, int(budget_s / took)))


def _round(ranks: Team, call: Callable[[], object], count: int) -> tuple[float, float]:
    """Seconds of one call on the slowest rank, processor seconds of one call on all ranks."""
    ranks.barrier()
    cpu, began = _cpu_s(), time.perf_counter()
    for _ in range(count):
        call()
    took, used = time.perf_counter() - began, _cpu_s() - cpu
    return ranks.most(took) / count, ranks.total(used) / count


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
