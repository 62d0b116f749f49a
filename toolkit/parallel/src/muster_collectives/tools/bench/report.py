"""Results as a table for people, and bus bandwidth over size as an SVG picture (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from muster_collectives.tools.bench.cases import CORE, GLOO, LIMIT, MPI, NAMES, OURS, Result
from muster_collectives.tools.columns import columns

_KIB, _MIB = 1 << 10, 1 << 20


def table(results: Sequence[Result]) -> str:
    """A line per case: times of all contenders; how many times longer the peers take, by medians
    and by best rounds; which share of the in-place limit the core reaches."""
    names = list(dict.fromkeys(name for result in results for name in result.series))
    lines = [["call", "size", *(f"{name} us" for name in names), "gloo/muster", "mpi/core",
              "of limit", "bus GB/s"]]  # fmt: skip
    for result in results:
        times = [f"{result.series[name].median * 1e6:.1f}" if name in result.series else "-"
                 for name in names]  # fmt: skip
        best = OURS if OURS in result.series else CORE
        bus = f"{result.bus_bytes_per_s(best) / 1e9:.2f}" if best in result.series else "-"
        lines.append([f"{result.case.verb} {result.case.dtype}", size_text(result.case.size_bytes),
                      *times, ratio(result, GLOO, OURS), ratio(result, MPI, CORE), share(result),
                      bus])  # fmt: skip
    text = columns(lines, left=(0,))
    for name, reason in sorted({pair for each in results for pair in each.absent.items()}):
        text.append(f"not measured: {name}: {reason}")
    return "\n".join(text)


def ratio(result: Result, slower: str, faster: str) -> str:
    times = result.times(slower, faster)
    return "-" if times is None else f"{times[0]:.1f}x / {times[1]:.1f}x"


def share(result: Result) -> str:
    times = result.times(LIMIT, CORE)
    return "-" if times is None else f"{times[0] * 100:.0f} %"


def size_text(bytes_: int) -> str:
    if bytes_ >= _MIB and bytes_ % _MIB == 0:
        return f"{bytes_ // _MIB} MiB"
    return f"{bytes_ // _KIB} KiB" if bytes_ >= _KIB and bytes_ % _KIB == 0 else f"{bytes_} B"


WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 40, 50
# distinguishable without red and green (Okabe and Ito)
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00", "#D55E00", "#999999")


def svg(results: Sequence[Result]) -> str:
    """A picture per call, one below the other. Raises ValueError without anything to draw."""
    verbs = list(dict.fromkeys((each.case.verb, each.case.dtype)
                               for each in results if set(each.series) - {LIMIT}))  # fmt: skip
    if not verbs:
        raise ValueError("no results to plot")
    parts = []
    for number, (verb, dtype) in enumerate(verbs):
        chosen = [each for each in results if (each.case.verb, each.case.dtype) == (verb, dtype)]
        parts.append(f'<g transform="translate(0 {number * HEIGHT})">{_panel(chosen)}</g>')
    height = HEIGHT * len(verbs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _panel(results: Sequence[Result]) -> str:
    case, ranks = results[0].case, results[0].ranks
    names = [name for name in NAMES
             if name != LIMIT and any(name in each.series for each in results)]  # fmt: skip
    speeds = {name: [(each.case.size_bytes, each.bus_bytes_per_s(name) / 1e9)
                     for each in results if name in each.series] for name in names}  # fmt: skip
    sizes = sorted({each.case.size_bytes for each in results})
    found = [speed for points in speeds.values() for _, speed in points]
    low, high = _decades(min(found), max(found))

    def across(size: int) -> float:
        span = math.log2(sizes[-1] / sizes[0]) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(size / sizes[0]) / span

    def up(speed: float) -> float:
        share = (math.log10(speed) - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    text = [_text(WIDTH / 2, 22, f"{case.verb} of {case.dtype}, {ranks} ranks: bus bandwidth, GB/s",
                  "middle")]  # fmt: skip
    for decade in range(low, high + 1):
        y = up(10.0**decade)
        text.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#dddddd", 1))
        text.append(_text(LEFT - 8, y + 4, f"{10.0**decade:g}", "end"))
    for size in sizes:
        x = across(size)
        text.append(_line([(x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 5)], "#333333", 1))
        text.append(_text(x, HEIGHT - BOTTOM + 20, size_text(size), "middle"))
    for place, name in enumerate(names):
        colour = COLOURS[NAMES.index(name)]
        text.append(_line([(across(s), up(v)) for s, v in sorted(speeds[name])], colour, 2))
        text += [f'<circle cx="{across(s):.1f}" cy="{up(v):.1f}" r="3" fill="{colour}"/>'
                 for s, v in speeds[name]]  # fmt: skip
        y = TOP + 10 + 18 * place
        text.append(_line([(WIDTH - RIGHT + 12, y), (WIDTH - RIGHT + 32, y)], colour, 2))
        text.append(_text(WIDTH - RIGHT + 38, y + 4, name, "start"))
    return "".join(text)


def _decades(least: float, most: float) -> tuple[int, int]:
    """Powers of ten around all values, at least one apart."""
    low = math.floor(math.log10(least))
    return low, max(low + 1, math.ceil(math.log10(most)))


def _line(points: Sequence[tuple[float, float]], colour: str, width: int) -> str:
    row = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{row}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
