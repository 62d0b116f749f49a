"""What ranks reported (metrics/rank-N.jsonl), thinned as it is read: lowest and highest value of
neighbouring steps, so that no spike is lost.

A line: {"schema": 1, "time": 1764.2, "step": 10, "samples": 640, "values": {"loss": 0.25}};
`samples` are those so far. Values may lie beside `step`, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, cast

from muster.report.cells import any_number, number
from muster.report.lines import Lines
from muster.report.values import Bucket, MetricSeries, ProgressPoint, RankMetrics

BUCKETS = 400  # of one series at least, where it has so many steps; twice that at most
MOST_NAMES = 40
POINTS = 256  # of a rank's progress at least, where it has so many lines; twice that at most
NO_VALUES = ("schema", "t", "time", "step", "samples", "values", "rank", "host", "every", "lost")
MOST_COUNTED = 1_000  # of further ones, in a piece of a file


class Reader:
    """Takes the lines of one rank in pieces."""

    def __init__(self) -> None:
        self._lines = 0
        self._steps = _Pace()
        self._samples = _Pace()
        self._series: dict[str, _Growing] = {}
        self._left_out: set[str] = set()
        self._stepped = 0  # lines with a step
        self._points: list[ProgressPoint] = []
        self._every = 1
        self._end: tuple[ProgressPoint, ...] = ()

    def take(self, entries: Sequence[dict[str, Any]]) -> None:
        if not entries:
            return
        steps = self._steps_of(entries)
        self._lines += len(entries)
        self._samples.take("samples", entries, [entry.get("samples") for entry in entries])
        apart = isinstance(entries[0].get("values"), dict)
        if apart:
            entries = _values_of(entries)
        names = sorted(set().union(*entries).difference(() if apart else NO_VALUES))
        room = MOST_NAMES - len(self._series)
        fresh = [name for name in names if name not in self._series]
        self._left_out.update(fresh[room : room + MOST_COUNTED])
        wanted = [name for name in names if name in self._series] + fresh[:room]
        for name, values in zip(wanted, _columns(entries, wanted), strict=True):
            self._series.setdefault(name, _Growing()).take(steps, list(values))

    def _steps_of(self, entries: Sequence[dict[str, Any]]) -> list[Any]:
        """Of each entry; without one it is that of the entry before, and its line while there was
        none at all."""
        steps = [entry.get("step") for entry in entries]
        last = self._steps.last
        self._steps.take("step", entries, steps)
        if set(map(type, steps)) == {int}:
            self._keep(entries)
            return steps
        self._keep([entry for entry in entries if number(entry.get("step")) is not None])
        at = None if last is None else last[1]
        for place, step in enumerate(steps):
            if number(step) is not None:
                at = step
            else:
                steps[place] = self._lines + place if at is None else at
        return steps

    def _keep(self, entries: Sequence[dict[str, Any]]) -> None:
        """Points of the progress, of entries that have a step."""
        while len(self._points) + len(entries) // self._every > 2 * POINTS:
            del self._points[1::2]
            self._every *= 2
        for at in range(-self._stepped % self._every, len(entries), self._every):
            self._points += _progress(entries[at : at + 1])
        self._stepped += len(entries)
        self._end = _progress(reversed(entries)) or self._end

    def metrics(self) -> RankMetrics:
        series = {name: one.series() for name, one in self._series.items() if one.has_values}
        last = self._steps.last
        return RankMetrics(
            lines=self._lines,
            last_step=None if last is None else last[1],
            rate=self._steps.per_second(),
            sample_rate=self._samples.per_second(),
            series=series,
            left_out=len(self._left_out),
            points=tuple(dict.fromkeys((*self._points, *self._end))),
        )


class _Pace:
    """What counts up: its first and its last value, with their times; of what counts anew, as the
    steps of each epoch or after a restart, since then."""

    def __init__(self) -> None:
        self.last: tuple[float, float] | None = None  # time, value
        self._first: tuple[float, float] | None = None

    def take(self, key: str, entries: Sequence[dict[str, Any]], values: Iterable[Any]) -> None:
        """`values`: of that key, None in entries that lack it."""
        known = [value for value in values if value is not None]
        if not known:
            return
        points = (_point(key, (entry,)) for entry in entries)
        if set(map(type, known)) == {int} and known == sorted(known):  # mostly, and it is fast
            points = (_point(key, some) for some in (entries, reversed(entries)))
        for point in filter(None, points):
            if self._first is None or (self.last is not None and point[1] < self.last[1]):
                self._first = point
            self.last = point

    def per_second(self) -> float | None:
        if self._first is None or self.last is None or self.last[0] <= self._first[0]:
            return None
        return (self.last[1] - self._first[1]) / (self.last[0] - self._first[0])


def _point(key: str, entries: Iterable[dict[str, Any]]) -> tuple[float, float] | None:
    """Time and value of the first entry that has it."""
    for entry in entries:
        time_s, value = number(entry.get("t", entry.get("time"))), number(entry.get(key))
        if time_s is not None and value is not None:
            return time_s, value
    return None


def _progress(entries: Iterable[dict[str, Any]]) -> tuple[ProgressPoint, ...]:
    """How far it was at the first entry that has a step and a time; () where none has."""
    for entry in entries:
        found = _point("step", (entry,))
        if found is not None:
            return (ProgressPoint(*found, number(entry.get("samples"))),)
    return ()


def _values_of(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [entry.get("values") for entry in entries]
    if set(map(type, found)) != {dict}:
        found = [one if isinstance(one, dict) else {} for one in found]
    return cast("list[dict[str, Any]]", found)


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


def read_metrics(path: str, since_s: float = 0.0) -> tuple[RankMetrics, int]:
    """Of one rank since then, seconds since 1970, and how many lines could not be read. Raises
    OSError."""
    lines, reader = Lines(path), Reader()
    for piece in lines.pieces():
        reader.take([one for one in piece if (number(one.get("time")) or since_s) >= since_s]
                    if since_s else piece)  # fmt: skip
    return reader.metrics(), lines.bad
