"""The timeline and the charts without script, as plain SVG. Places along the time are percents of
the width, so that texts keep their size on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from muster.report.charts import Chart, ChartLine
from muster.report.figures import RunFigures
from muster.report.values import PhaseSpan, RankRow
from muster.report.verdict import PHASES, duration
from muster.types.values import NamedTuple

ROW, THIN = 18, 3  # pixels of a rank's row, and of one where there are many
MANY = 48
COLORS = 8  # classes c0 to c7 of lines
WIDTH, HEIGHT = 1000, 180  # units of a chart
MOST_MARKS = 40
MOST_HOSTS = 64
MOST_RANKS = 512  # of one host
SHOWN_S = 0.05  # of a phase in words


class TimelineLane(NamedTuple):
    """One row of the timeline: a host's phases, or one rank, or a host's many ranks; or the axis.
    `drawing`: markup, whole and escaped."""

    label: str
    kind: str
    drawing: str


def timeline(figures: RunFigures) -> list[TimelineLane]:
    """The rows from the top; [] where the record has no times."""
    end = max([figures.seconds or 0.0, *(one.ends_s or 0.0 for one in figures.phases),
               *(one.ends_s or 0.0 for one in figures.ranks)])  # fmt: skip
    if not end or not (figures.phases or any(one.begins_s is not None for one in figures.ranks)):
        return []
    ticks = _ticks(end)
    lanes = [TimelineLane("", "axis", drawing(16, (_tick(at, end) for at in ticks)))]
    many = len(figures.ranks) > MANY
    for host in _hosts(figures)[:MOST_HOSTS]:
        phases = [one for one in figures.phases if one.host == host]
        ranks = [one for one in figures.ranks if one.host == host and one.begins_s is not None]
        ranks = ranks[:MOST_RANKS]
        marks = [(one.at_s, one.kind, f"{duration(one.at_s)}: {one.kind}: {one.text}")
                 for one in figures.moments if one.host == host]  # fmt: skip
        lanes.append(TimelineLane(host, "host", _host(phases, marks[:MOST_MARKS], end, ticks)))
        if many and ranks:
            label = f"{ranks[0].rank} to {ranks[-1].rank}" if ranks[1:] else f"rank {ranks[0].rank}"
            lanes.append(TimelineLane(label, "rank", _ranks(ranks, end, ticks, THIN)))
        elif not many:
            lanes += [TimelineLane(f"rank {one.rank}", "rank", _ranks([one], end, ticks, ROW))
                      for one in ranks]  # fmt: skip
    return lanes


def _hosts(figures: RunFigures) -> list[str]:
    """In the order of the record, but of many those with a failed rank first."""
    hosts = dict.fromkeys([*(p.host for p in figures.phases), *(r.host for r in figures.ranks)])
    failed = {one.host for one in figures.ranks if one.good is False}
    if len(hosts) <= MOST_HOSTS:
        return list(hosts)
    return sorted(hosts, key=lambda host: host not in failed)


def hidden_hosts(figures: RunFigures) -> int:
    """How many hosts have no room in the timeline."""
    return max(0, len(_hosts(figures)) - MOST_HOSTS)


def longest_phases(figures: RunFigures) -> list[tuple[str, float]]:
    """Each phase in words, and how long it took on the slowest host; in the order of the run."""
    found: dict[str, float] = {}
    for one in figures.phases:
        if one.ends_s is not None:
            words = PHASES.get(one.name, one.name)
            found[words] = max(found.get(words, 0.0), one.ends_s - one.begins_s)
    return [(name, took) for name, took in found.items() if took >= SHOWN_S]


def _host(
    phases: Sequence[PhaseSpan], marks: Sequence[tuple[float, str, str]], end: float,
    ticks: Sequence[float],
) -> str:  # fmt: skip
    bars = []
    for one in phases:
        ends = end if one.ends_s is None else one.ends_s
        words = PHASES.get(one.name, one.name)
        title = f"{words}: {duration(ends - one.begins_s)}, from {duration(one.begins_s)} on"
        bars.append(_bar(one.begins_s, ends, end, ROW, f"p-{one.name}", title))
        if (ends - one.begins_s) / end > 0.12:
            bars.append(f'<text x="{_percent(one.begins_s, end)}" dx="4" y="13">'
                        f"{escape(words)}</text>")  # fmt: skip
    for at_s, kind, title in marks:
        x = _percent(at_s, end)
        bars.append(f'<g class="mark m-{_name(kind)}"><title>{escape(title)}</title>'
                    f'<line x1="{x}" x2="{x}" y1="0" y2="{ROW}"/>'
                    f'<circle cx="{x}" cy="{ROW // 2}" r="4"/></g>')  # fmt: skip
    return drawing(ROW, [*_grid(ticks, end, ROW), *bars])


def _ranks(ranks: Sequence[RankRow], end: float, ticks: Sequence[float], height: int) -> str:
    parts = list(_grid(ticks, end, height * len(ranks)))
    for at, one in enumerate(ranks):
        begins = one.begins_s or 0.0
        ends = end if one.ends_s is None else one.ends_s
        kind = {True: "good", False: "bad", None: "open"}[one.good]
        if kind == "good" and "stopped" in one.end:
            kind = "stopped"
        title = f"rank {one.rank}: {one.end or 'end unknown'} after {duration(ends - begins)}"
        parts.append(_bar(begins, ends, end, height - 1, f"r-{kind}", title, at * height))
        if height == ROW:
            parts.append(_ending(one, kind, ends, end))
    return drawing(height * len(ranks), parts)


def _ending(one: RankRow, kind: str, ends: float, end: float) -> str:
    words = one.end or "end unknown"
    x, inside = _percent(ends, end), ends / end > 0.6
    side = 'class="in" text-anchor="end" dx="-5"' if inside else 'dx="5"'
    mark = "\u2717 " if kind == "bad" else ""
    return f'<text x="{x}" y="13" {side}>{mark}{escape(words)}</text>'


def _bar(
    begins: float, ends: float, end: float, height: int, kind: str, title: str, y: int = 0
) -> str:
    width = max(0.15, 100 * (ends - begins) / end)
    return (
        f'<rect class="{_name(kind)}" x="{_percent(begins, end)}" y="{y}" width="{width:.2f}%" '
        f'height="{height}"><title>{escape(title)}</title></rect>'
    )


def _grid(ticks: Iterable[float], end: float, height: int) -> Iterator[str]:
    for at in ticks:
        x = _percent(at, end)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{height}"/>'


def _tick(at: float, end: float) -> str:
    side = 'text-anchor="end" dx="-2"' if at / end > 0.9 else 'dx="2"'
    return f'<text x="{_percent(at, end)}" y="12" {side}>{escape(_seconds(at))}</text>'


def _seconds(at: float) -> str:
    return f"{at:g} s" if at < 120 else duration(at).removesuffix(" 0 s").removesuffix(" 0 min")


def _ticks(end: float) -> list[float]:
    """Round times, at most six."""
    steps = [m * 10**e for e in range(-3, 2) for m in (1, 2, 5)]
    steps += [m * 60 for m in (1, 2, 5, 10, 15, 30)] + [m * 3600 for m in (1, 2, 4, 8, 24, 48, 168)]
    step = next((one for one in steps if end / one <= 5), end)
    return [round(step * at, 6) for at in range(int(end / step) + 1)]


def drawing(height: int, parts: Iterable[str]) -> str:
    """The elements as one picture, as wide as its place."""
    return f'<svg width="100%" height="{height}" aria-hidden="true">{"".join(parts)}</svg>'


def _percent(at: float, end: float) -> str:
    return f"{min(100.0, max(0.0, 100 * at / end)):.2f}%"


def _name(text: str) -> str:
    """As a class of the style sheet."""
    return "".join(
        char for char in text.lower() if char.isascii() and (char.isalnum() or char == "-")
    )


def chart(one: Chart) -> str:
    """The chart's lines, for where no script runs and for print; the middle of each column."""
    values = [v for line in one.lines for v in (*line.low, *line.high) if v is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    first, last = one.xs[0], one.xs[-1]
    room = (high - low) or 1.0
    lines = "".join(
        f'<polyline class="c{at % COLORS}" points="{points}"/>'
        for at, line in enumerate(one.lines)
        for points in _points(one.xs, line, first, (last - first) or 1.0, low, room)
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    return f'<svg class="lines" {box} aria-hidden="true">{lines}</svg>'


def _points(
    xs: Sequence[float], line: ChartLine, first: float, span: float, low: float, room: float
) -> Iterator[str]:
    """One text of points for each part of the line without a gap."""
    part: list[str] = []
    for x, a, b in zip(xs, line.low, line.high or line.low, strict=True):
        if a is None or b is None:
            if part:
                yield " ".join(part)
            part = []
            continue
        y = HEIGHT - 4 - ((a + b) / 2 - low) / room * (HEIGHT - 8)
        part.append(f"{(x - first) / span * WIDTH:.0f},{y:.0f}")
    if part:
        yield " ".join(part)
