"""What ranks reported (metrics/rank-N.jsonl), thinned as it is read: lowest and highest value of
neighbouring steps, so that no spike is lost.

A line: {"schema": 1, "time": 1764.2, "step": 10, "samples": 640, "values": {"loss": 0.25}};
`samples` are those so far. Values may lie beside `step`, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from muster.report.cells import any_number, number
from muster.report.lines import Lines
from muster.report.values import Bucket, MetricSeries, ProgressPoint, RankMetrics

BUCKETS = 400  # of one series at least, where it has so many steps; twice that at most
MOST_NAMES = 40
POINTS = 256  # of a rank's progress at least, where it has so many lines; twice that at most
_NO_VALUES = ("schema", "t", "time", "step", "samples", "values", "rank", "host", "every", "lost")


class Reader:
    """Takes the lines of one rank in pieces."""

    def __init__(self) -> None:
        self._lines = 0
        self._first: tuple[float, float] | None = None  # time, step
        self._last: tuple[float, float] | None = None
        self._samples: tuple[float | None, float | None] = (None, None)
        self._last_step: float | None = None
        self._series: dict[str, _Growing] = {}
        self._points: list[ProgressPoint] = []
        self._every = 1
        self._end: tuple[ProgressPoint, ...] = ()

    def take(self, entries: Sequence[dict[str, Any]]) -> None:
        if not entries:
            return
        steps = [entry.get("step") for entry in entries]
        if set(map(type, steps)) != {int}:
            count = self._lines
            steps = [count + at if number(s) is None else s for at, s in enumerate(steps)]
        self._progress(entries, steps)
        self._lines += len(entries)
        self._last_step = float(steps[-1] or 0)
        self._time(entries[0], steps[0])
        self._time(entries[-1], steps[-1])
        if isinstance(entries[0].get("values"), dict):
            entries = list(map(_values_of, entries))
        names = {name for entry in (entries[0], entries[len(entries) // 2], entries[-1])
                 for name in entry}  # fmt: skip
        wanted = sorted(names.difference(_NO_VALUES))[:MOST_NAMES]
        for name, values in zip(wanted, _columns(entries, wanted), strict=True):
            if name in self._series or len(self._series) < MOST_NAMES:
                self._series.setdefault(name, _Growing()).take(steps, list(values))

    def _time(self, entry: dict[str, Any], step: object) -> None:
        time_s, at = number(entry.get("t", entry.get("time"))), number(step)
        if time_s is None or at is None:
            return
        if self._first is None:
            self._first = time_s, at
            self._samples = number(entry.get("samples")), None
        self._last = time_s, at
        self._samples = self._samples[0], number(entry.get("samples"))

    def _progress(self, entries: Sequence[dict[str, Any]], steps: Sequence[Any]) -> None:
        for at in range(-self._lines % self._every, len(entries), self._every):
            self._points += _point(entries[at], steps[at])
        while len(self._points) > 2 * POINTS:
            del self._points[1::2]
            self._every *= 2
        self._end = _point(entries[-1], steps[-1])

    def metrics(self) -> RankMetrics:
        rate = sample_rate = None
        if self._first and self._last and self._last[0] > self._first[0]:
            took_s = self._last[0] - self._first[0]
            rate = (self._last[1] - self._first[1]) / took_s
            before, after = self._samples
            if before is not None and after is not None:
                sample_rate = (after - before) / took_s
        series = {name: one.series() for name, one in self._series.items() if one.has_values}
        points = tuple(dict.fromkeys((*self._points, *self._end)))
        return RankMetrics(self._lines, self._last_step, rate, sample_rate, series, points)


def _point(entry: dict[str, Any], step: object) -> tuple[ProgressPoint, ...]:
    time_s, at = number(entry.get("t", entry.get("time"))), number(step)
    if time_s is None or at is None:
        return ()
    return (ProgressPoint(time_s, at, number(entry.get("samples"))),)


def _values_of(entry: dict[str, Any]) -> dict[str, Any]:
    values = entry.get("values")
    return values if isinstance(values, dict) else {}


def _columns(entries: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterable[Sequence[Any]]:
    """The values of each name; None in entries that lack it."""
    try:
        if len(names) > 1:  # for one name itemgetter makes no tuple
            return list(zip(*map(itemgetter(*names), entries), strict=True))
    except KeyError:
        pass
    return [[entry.get(name) for entry in entries] for name in names]


class _Growing:
    """One series. Buckets hold `width` values each; when there are too many, two become one."""

    def __init__(self) -> None:
        self.has_values = False
        self._width = 1
        self._buckets: list[Bucket] = []
        self._rest: tuple[list[Any], list[Any]] = ([], [])
        self._last: float | None = None
        self._odd: float | None = None

    def take(self, steps: list[Any], values: list[Any]) -> None:
        try:
            total = math.fsum(values)  # one look at all of them: mostly all are finite numbers
            plain = math.isfinite(total) and bool not in set(map(type, values))
        except (TypeError, ValueError, OverflowError):
            plain = False
        if not plain:
            steps, values = self._good(steps, values)
        if not values:
            return
        self.has_values = True
        self._last = float(values[-1])
        steps, values = self._rest[0] + steps, self._rest[1] + values
        while len(values) // self._width + len(self._buckets) > 2 * BUCKETS:
            self._halve()
        width = self._width
        whole = len(values) - len(values) % width
        for at in range(0, whole, width):
            some = values[at : at + width]
            self._buckets.append(Bucket(steps[at], min(some), max(some)))
        self._rest = steps[whole:], values[whole:]

    def _good(self, steps: list[Any], values: list[Any]) -> tuple[list[Any], list[Any]]:
        kept: tuple[list[Any], list[Any]] = ([], [])
        for step, value in zip(steps, values, strict=True):
            found = any_number(value)
            if found is None:
                continue
            if math.isfinite(found):
                kept[0].append(step)
                kept[1].append(found)
                continue
            self.has_values = True
            if self._odd is None:
                self._odd = step
        return kept

    def _halve(self) -> None:
        pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
        merged = [Bucket(a.step, min(a.low, b.low), max(a.high, b.high)) for a, b in pairs]
        self._buckets = merged + self._buckets[len(merged) * 2 :]
        self._width *= 2

    def series(self) -> MetricSeries:
        steps, values = self._rest
        rest = [Bucket(steps[0], min(values), max(values))] if values else []
        return MetricSeries((*self._buckets, *rest), self._last, self._odd)


def read_metrics(path: str) -> tuple[RankMetrics, int]:
    """Of one rank, and how many lines could not be read. Raises OSError."""
    lines, reader = Lines(path), Reader()
    for piece in lines.pieces():
        reader.take(piece)
    return reader.metrics(), lines.bad
