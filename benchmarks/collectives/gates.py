"""From a measured case to a row with its bounds (pure).

How a ratio is formed. The contenders of a case take turns A B C A B C, so in every round they met
the same machine. A ratio is taken in each round, and the figure is the median of those: a machine
that is slow for a while slows both sides of a round, and drops out. Beside it stands the interval
in which that median lies with 95 % (from the order of the rounds, whatever their distribution).

A row whose bound is above the lower end of that interval is undecided: it misses, or chance may
have made it meet. Its case is measured again by new processes, twice at most, and all rounds of all
runs count together, so that nothing is picked (the rounds of one minute may all be of a machine
that is another one the next minute). The verdict is that of the median. Where it misses while the
memory-bound probe itself varied more than twofold (its slowest tenth and fastest tenth set aside),
the row is not judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from benchmarks.table import Bound, Row
from muster_collectives.tools.bench.cases import LIMIT, Case, Result, Series
from muster_collectives.tools.bench.report import size_text

NOISE = 2.0  # of the in-place limit between rounds: the machine was somebody else's as well
AGAIN = 2  # runs more of a case that is undecided
_CLOCK_S = 1e-5  # less cannot be told from nothing
_SET_ASIDE = 10  # a tenth of the rounds at either end


class Gate(NamedTuple):
    """`slower` takes at least `least` times as long as `faster`; `what` says why it is asked.
    `beyond`: a contender whose time is taken off both sides, such as a step that sends nothing."""

    slower: str
    faster: str
    least: float
    what: str = ""
    beyond: str = ""

    @property
    def text(self) -> str:
        if self.beyond:
            return f"adds {self.least:g}x less than {self.slower} to a step {self.beyond}"
        return f"{self.slower} {self.least:g}x {self.faster} {self.what}".rstrip()


class Ratio(NamedTuple):
    """The median of the rounds' ratios and the 95 % interval around it."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f})"


def ratio(result: Result, gate: Gate) -> Ratio | None:
    """None where a contender is not there."""
    names = (gate.slower, gate.faster, *filter(None, [gate.beyond]))
    if any(name not in result.series for name in names):
        return None
    columns = [result.series[name].seconds for name in names]
    return median_of([_times(*each) for each in zip(*columns, strict=True)])


def median_of(ratios: Sequence[float]) -> Ratio:
    """By the sign test: as many rounds are set aside at both ends as chance may misplace."""
    ordered, count = sorted(ratios), len(ratios)
    first = max(0, int((count + 1) / 2 - 0.98 * math.sqrt(count)) - 1)
    return Ratio(statistics.median(ordered), ordered[first], ordered[count - 1 - first])


def undecided(result: Result, gates: Iterable[Gate]) -> bool:
    """Whether a bound is missed, or met where chance alone may have done it."""
    found = ((gate, ratio(result, gate)) for gate in gates)
    return any(each and each.low < gate.least for gate, each in found)


def settled(
    results: Sequence[Result],
    gates: Callable[[Result], Sequence[Gate]],
    again: Callable[[Sequence[Case]], Sequence[Result]],
    times: int = AGAIN,
) -> list[Result]:
    """`results` with more rounds where `gates` leave one undecided. `again` measures cases anew,
    in the order that it is given, at most so many `times`."""
    kept = list(results)
    for _ in range(times):
        open_ = [at for at, each in enumerate(kept) if undecided(each, gates(each))]
        if not open_:
            break
        for at, more in zip(open_, again([kept[at].case for at in open_]), strict=True):
            kept[at] = pooled(kept[at], more)
    return kept


def pooled(one: Result, other: Result) -> Result:
    """All rounds of two runs of one case; contenders that only one of them has are dropped."""
    series = {
        name: Series(each.seconds + more.seconds, each.cpu_s + more.cpu_s, each.calls)
        for name, each in one.series.items()
        if (more := other.series.get(name)) is not None
    }
    return Result(one.case, one.ranks, series, {**one.absent, **other.absent})


def row(result: Result, ours: str, gates: Iterable[Gate], what: str = "") -> Row:
    """`ours`: whose time the row shows, in us. The module says how it is judged."""
    case = result.case
    name = what or f"{case.verb} {case.dtype} {size_text(case.size_bytes)}, {result.ranks} ranks"
    return judged(result, ours, gates, name)


def judged(
    result: Result, ours: str, gates: Iterable[Gate], what: str, unit: str = "us",
    more: Sequence[Bound] = (), detail: str = "",
) -> Row:  # fmt: skip
    """A row of any unit of time, with bounds and words beside those of `gates`."""
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    bounds, words = list(more), []
    for gate in gates:
        found = ratio(result, gate)
        if found is None:
            words.append(f"no {gate.slower} or {gate.faster}")
            continue
        bounds.append(Bound(gate.text, found.middle >= gate.least))
        off = f" beyond {gate.beyond}" if gate.beyond else ""
        words.append(f"{gate.slower}/{gate.faster}{off} {found}")
    words += [detail] if detail else []
    words += [f"{absent}: {why}" for absent, why in result.absent.items()]
    rounds = len(result.series[ours].seconds)
    words.append(f"{rounds} rounds")
    peers = {each: series.median * scale for each, series in result.series.items() if each != ours}
    own = result.series[ours].median * scale
    made = Row(what, unit, own, peers, tuple(bounds), "; ".join(words))
    return made if made.met else _quiet(made, result)


def _times(slower: float, faster: float, beyond: float = 0.0) -> float:
    if not beyond:
        return slower / faster
    return max(0.0, slower - beyond) / max(_CLOCK_S, faster - beyond)


def _quiet(made: Row, result: Result) -> Row:
    """The row as it is, or as not run where the machine was too busy to judge it."""
    spread = _spread(result.series[LIMIT].seconds) if LIMIT in result.series else 1.0
    if spread <= NOISE:
        return made
    text = f"not judged: the in-place limit varied {spread:.1f}-fold between rounds; {made.detail}"
    return made._replace(ours=None, detail=text)


def _spread(seconds: Sequence[float]) -> float:
    ordered = sorted(seconds)
    aside = len(ordered) // _SET_ASIDE
    return ordered[-1 - aside] / ordered[aside]
