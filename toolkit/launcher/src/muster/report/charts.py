"""Line charts as numbers, thin enough for a page: of each pixel column the lowest and the highest
value, of many ranks the lowest, the median and the highest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import median_high, median_low

from muster.report.align import Aligned
from muster.report.values import Bucket, HostRecord, RankMetrics
from muster.types.values import NamedTuple

COLUMNS = 300
MOST_LINES = 8  # of more ranks a chart shows the range
MOST_CHARTS = 12
MIB = 1 << 20


class ChartLine(NamedTuple):
    """One value a column, None where there is none. `high` is () where it is the same."""

    name: str
    low: tuple[float | None, ...]
    high: tuple[float | None, ...] = ()


class Chart(NamedTuple):
    """Lines over the same columns. `x`: step or seconds; `xs`: where each column begins."""

    title: str
    unit: str
    x: str
    xs: tuple[float, ...]
    lines: tuple[ChartLine, ...]


def names_of(reported: Mapping[int, RankMetrics]) -> list[str]:
    """All names that any rank reported, in the order of the first to report each."""
    return list(dict.fromkeys(name for one in reported.values() for name in one.series))


def of_metrics(reported: Mapping[int, RankMetrics]) -> Iterator[Chart]:
    """One chart for each metric that changes, over steps, at most MOST_CHARTS."""
    for name in changing(reported)[:MOST_CHARTS]:
        points = {f"rank {rank}": one.series[name].buckets
                  for rank, one in sorted(reported.items()) if name in one.series}  # fmt: skip
        chart = _chart(name, "", "step", points)
        if chart is not None:
            yield chart


def changing(reported: Mapping[int, RankMetrics]) -> list[str]:
    return [name for name in names_of(reported) if _changes(reported, name)]


def _changes(reported: Mapping[int, RankMetrics], name: str) -> bool:
    """Whether it is worth a chart: a value that never changes stands in the table."""
    series = [one.series[name].buckets for one in reported.values() if name in one.series]
    low = min((bucket.low for one in series for bucket in one), default=0.0)
    return any(bucket.high > low for one in series for bucket in one)


def of_samples(hosts: Sequence[HostRecord], aligned: Aligned) -> Iterator[Chart]:
    """Memory and used processors of each rank, over seconds since the beginning."""
    memory: dict[int, list[Bucket]] = {}
    cpus: dict[int, list[Bucket]] = {}
    for host in hosts:
        for rank, samples in host.samples.items():
            before = None
            for one in samples:
                at = aligned.at(host.name, one.t)
                if one.memory_bytes is not None:
                    mib = one.memory_bytes / MIB
                    memory.setdefault(rank, []).append(Bucket(at, mib, mib))
                if one.cpu_s is not None:
                    if before is not None and one.t > before[0]:
                        used = max(0.0, (one.cpu_s - before[1]) / (one.t - before[0]))
                        cpus.setdefault(rank, []).append(Bucket(at, used, used))
                    before = one.t, one.cpu_s
    for title, unit, found in (("memory", "MiB", memory), ("processors used", "", cpus)):
        named = {f"rank {rank}": points for rank, points in sorted(found.items())}
        chart = _chart(title, unit, "seconds", named)
        if chart is not None:
            yield chart


def overlaid(runs: Mapping[str, Sequence[Chart]]) -> list[Chart]:
    """Charts that several runs have, each run as one line: the median of its ranks."""
    titles = dict.fromkeys(one.title for charts in runs.values() for one in charts)
    found = []
    for title in titles:
        alike = {name: one for name, charts in runs.items() for one in charts if one.title == title}
        first = next(iter(alike.values()))
        points = {name: _middle(one) for name, one in alike.items()}
        chart = _chart(title, first.unit, first.x, points) if len(alike) > 1 else None
        if chart is not None:
            found.append(chart)
    return found


def _middle(chart: Chart) -> list[Bucket]:
    """A run as one line: of each column the median of what its ranks have there."""
    found = []
    for at, x in enumerate(chart.xs):
        values = [v for line in chart.lines for v in (line.low[at], *line.high[at : at + 1])
                  if v is not None]  # fmt: skip
        if values:
            middle = _median(values)
            found.append(Bucket(x, middle, middle))
    return found


def _chart(title: str, unit: str, x: str, points: Mapping[str, Sequence[Bucket]]) -> Chart | None:
    steps = [{one.step for one in buckets} for buckets in points.values()]
    if max(map(len, steps), default=0) < 2:  # points alone draw nothing
        return None
    xs = _columns(set().union(*steps))
    lines = [_line(name, buckets, xs) for name, buckets in points.items()]
    if len(lines) > MOST_LINES:
        lines = _range(lines)
    lines = [one._replace(high=()) if one.low == one.high else one for one in lines]
    return Chart(title, unit, x, tuple(map(_round, xs)), tuple(lines))


def _columns(xs: set[float]) -> list[float]:
    """Where each column begins: every place that has a point, or COLUMNS of equal width."""
    found = sorted(xs)
    if len(found) <= COLUMNS:
        return found
    first, width = found[0], (found[-1] - found[0]) / COLUMNS
    return [first + width * at for at in range(COLUMNS)]


def _line(name: str, buckets: Iterable[Bucket], xs: Sequence[float]) -> ChartLine:
    """The lowest and the highest value of each column."""
    low: list[float | None] = [None] * len(xs)
    high = list(low)
    for one in buckets:
        at = bisect_left(xs, one.step)
        at -= at == len(xs) or xs[at] > one.step
        lowest, highest = low[at], high[at]
        low[at] = one.low if lowest is None else min(lowest, one.low)
        high[at] = one.high if highest is None else max(highest, one.high)
    return ChartLine(name, tuple(map(_rounded, low)), tuple(map(_rounded, high)))


def _range(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """Of many ranks their range and their median, in place of a line for each."""
    low, middle, high = [], [], []
    columns = zip(
        zip(*(one.low for one in lines), strict=True),
        zip(*(one.high for one in lines), strict=True),
        strict=True,
    )
    for lows, highs in columns:
        pairs = [(a, b) for a, b in zip(lows, highs, strict=True) if a is not None]
        low.append(min((a for a, _ in pairs), default=None))
        high.append(max((b for _, b in pairs if b is not None), default=None))
        mids = [a / 2 + b / 2 for a, b in pairs if b is not None]
        middle.append(_rounded(_median(mids)) if mids else None)
    return [
        ChartLine(f"{len(lines)} ranks", tuple(low), tuple(high)),
        ChartLine("median", tuple(middle)),
    ]


def _median(values: Sequence[float]) -> float:
    return median_low(values) / 2 + median_high(values) / 2  # a sum might be infinite


def _rounded(value: float | None) -> float | None:
    return None if value is None else _round(value)


def _round(value: float) -> float:
    short = float(f"{value:.5g}")
    if not isfinite(short):  # of the largest numbers
        return value
    return int(short) if short == int(short) else short
