"""Two runs: what was asked, what was planned, how each ended, how long, how fast. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from muster.report.charts import Chart, overlaid
from muster.report.figures import RunFigures
from muster.report.svg import longest_phases
from muster.report.verdict import RunVerdict, duration
from muster.types.plain import size_text
from muster.types.values import NamedTuple

SAME = 0.03  # changes below are taken for noise
UNSEEN = 0.0005
Words = Callable[[float], str]
Choose = Callable[[Iterable[float]], float]


class DifferenceRow(NamedTuple):
    """One thing of both runs, in words. `change`: of the second over the first, or ""."""

    name: str
    a: str
    b: str
    change: str
    differs: bool


class DifferenceGroup(NamedTuple):
    """Rows of one subject. `title` stands above them."""

    name: str
    rows: tuple[DifferenceRow, ...]


class Comparison(NamedTuple):
    """`verdict`: in words what is different. `charts`: of both runs, a line each."""

    verdict: RunVerdict
    groups: tuple[DifferenceGroup, ...]
    charts: tuple[Chart, ...]


def compare(a: RunFigures, b: RunFigures) -> Comparison:
    """What the second run does otherwise than the first."""
    groups = [
        DifferenceGroup("Request and plan", tuple(_facts(a.facts, b.facts))),
        DifferenceGroup("End", tuple(_ends(a, b))),
        DifferenceGroup("Durations, slowest host", tuple(_durations(a, b))),
        DifferenceGroup("Ranks", tuple(_rates(a, b))),
        DifferenceGroup("Metrics, last values", tuple(_metrics(a, b))),
    ]
    kept = tuple(one for one in groups if one.rows)
    charts = overlaid({a.name: a.charts, b.name: b.charts})
    return Comparison(_verdict(a, b, groups), kept, tuple(charts))


def _facts(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[DifferenceRow]:
    for name in dict.fromkeys([*a, *b]):
        if name == "run":
            continue
        left, right = a.get(name, "-"), b.get(name, "-")
        change = _words(left, right) if name == "command" else ""
        yield DifferenceRow(name, left, right, change, left != right)


def _words(a: str, b: str) -> str:
    """The options of two command lines, with their values, that only one of them has."""
    left, right = (re.split(" (?=-)", one) for one in (a, b))
    gone = " ".join(one for one in left if one not in right)
    new = " ".join(one for one in right if one not in left)
    return "; ".join(filter(None, [gone and f"without {gone}", new and f"with {new}"]))


def _ends(a: RunFigures, b: RunFigures) -> Iterator[DifferenceRow]:
    left, right = a.verdict, b.verdict
    yield DifferenceRow("verdict", left.headline, right.headline, "", left.level != right.level)
    counts = [sum(one.good is False for one in run.ranks) for run in (a, b)]
    if any(counts):
        yield _number_row("ranks that failed", counts[0], counts[1])


def _durations(a: RunFigures, b: RunFigures) -> Iterator[DifferenceRow]:
    yield _number_row("whole run", a.seconds, b.seconds, duration)
    left, right = dict(longest_phases(a)), dict(longest_phases(b))
    for name in dict.fromkeys([*left, *right]):
        yield _number_row(name, left.get(name), right.get(name), duration)


def _rates(a: RunFigures, b: RunFigures) -> Iterator[DifferenceRow]:
    kinds = (
        ("steps/s, slowest rank", "rate", min, _short),
        ("samples/s, slowest rank", "sample_rate", min, _short),
        ("last step, first rank there", "steps", min, _short),
        ("most memory of a rank", "peak_memory_bytes", max, size_text),
        ("processors used, most", "cpus", max, _short),
        ("waited for a processor, most", "run_delay_s", max, duration),
        ("waited for ranks, most", "waits_s", max, duration),
    )
    for name, field, choose, words in kinds:
        values = [_chosen((getattr(one, field) for one in run.ranks), choose) for run in (a, b)]
        if any(one is not None for one in values):
            yield _number_row(name, values[0], values[1], words)


def _chosen(values: Iterable[float | None], choose: Choose) -> float | None:
    """One of the values that are known; None where none is."""
    found = [one for one in values if one is not None]
    return choose(found) if found else None


def _metrics(a: RunFigures, b: RunFigures) -> Iterator[DifferenceRow]:
    left, right = ({one.name: one for one in run.metrics} for run in (a, b))
    for name in dict.fromkeys([*left, *right]):
        values = [one.lowest if one is not None else None
                  for one in (left.get(name), right.get(name))]  # fmt: skip
        yield _number_row(name, values[0], values[1])


def _short(value: float) -> str:
    return f"{value:.4g}"


def _number_row(
    name: str, a: float | None, b: float | None, words: Words = _short
) -> DifferenceRow:
    left, right = ("-" if one is None else words(one) for one in (a, b))
    change = _change(a, b)
    differs = left != right if a is None or b is None or not a else abs(b / a - 1) > SAME
    return DifferenceRow(name, left, right, change, differs)


def _change(a: float | None, b: float | None) -> str:
    if not a or b is None:
        return ""
    ratio = b / a
    if abs(ratio - 1) < UNSEEN:
        return "same"
    return f"{ratio:.2f} times" if ratio > 2 or ratio < 0 else f"{ratio - 1:+.1%}"


def _verdict(a: RunFigures, b: RunFigures, groups: Iterable[DifferenceGroup]) -> RunVerdict:
    """What the page says on top of two runs."""
    rows = {group.name: [row for row in group.rows if row.differs] for group in groups}
    asked = [f"{row.name}: {row.change or f'{row.a} before, {row.b} now'}"
             for row in rows["Request and plan"]][:4]  # fmt: skip
    slower = rows["Durations, slowest host"][1:]
    slower.sort(key=lambda row: row.change)
    why = [*asked, *(f"{row.name}: {row.a} before, {row.b} now" for row in
                     (*rows["Ranks"], *slower, *rows["Metrics, last values"])[:4])]  # fmt: skip
    todo: tuple[str, ...] = ("The bold rows below differ; the rest is the same.",)
    if a.verdict.level != b.verdict.level:
        level, headline = b.verdict.level, f"They end differently. {b.name}: {b.verdict.headline}"
        if b.verdict.level != "good":
            todo = (*b.verdict.next, *todo)
    else:
        level, headline = a.verdict.level, _speed(a, b)
        if level == "good" and " slower: " in headline:
            level = "warn"
    return RunVerdict(level, headline, tuple(why) or ("Nothing of note differs.",), todo)


def _speed(a: RunFigures, b: RunFigures) -> str:
    rates = [_chosen((one.rate for one in run.ranks), min) for run in (a, b)]
    if rates[0] and rates[1]:
        if abs(rates[1] / rates[0] - 1) <= SAME:
            return f"Both run at the same rate: {rates[0]:.4g} and {rates[1]:.4g} steps/s"
        faster = "faster" if rates[1] > rates[0] else "slower"
        return (f"{b.name} is {abs(rates[1] / rates[0] - 1):.0%} {faster}: {rates[0]:.4g} before, "
                f"{rates[1]:.4g} steps/s now")  # fmt: skip
    if a.seconds and b.seconds:
        return f"{a.name} took {duration(a.seconds)}, {b.name} {duration(b.seconds)}"
    return f"{a.name} and {b.name} end alike"
