"""The drawings of the scaling page, as plain SVG that needs no script. Places along the width are
percents, so that texts keep their size on a narrow screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from html import escape
from itertools import pairwise

from muster.report.scale import REASONS, ScaleFigures, ScaleSize, parts
from muster.report.svg import ROW, drawing

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 300, 22, 26, 9.0, 93.0  # pixels; percents of the width
WIDE = 8  # beyond so many times the base both axes are logarithmic
MOST_TICKS = 5
DASHES = 40  # of the ideal line: lines in percents have no dashes of even length otherwise


def short(value: float) -> str:
    """`3.98k`: a rate beside an axis."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def rates(figures: ScaleFigures) -> str:
    """Rate over ranks: points with their spread, lines between them, the ideal line from the base
    to the largest size that was run."""
    sizes = figures.sizes
    logarithmic = sizes[-1].ranks > WIDE * sizes[0].ranks
    most = max(max(one.high, one.ideal or 0.0) for one in sizes)
    least = min(one.low for one in sizes) if logarithmic else 0.0
    x = _along([one.ranks for one in sizes], logarithmic)
    y = _up(least, most, logarithmic)
    drawn = [
        *_axes(sizes, least, most, logarithmic, x, y),
        *_ideal(sizes, x, y),
        *_measured(sizes, x, y),
    ]
    return drawing(HEIGHT, drawn)


def _along(ranks: list[int], logarithmic: bool) -> Callable[[float], float]:
    """Where a number of ranks lies along the width, in percents of it."""
    first, last = (math.log(ranks[0]), math.log(ranks[-1])) if logarithmic else (0.0, ranks[-1])

    def place(value: float) -> float:
        at = math.log(value) if logarithmic else value
        return LEFT + (RIGHT - LEFT) * (at - first) / ((last - first) or 1.0)

    return place


def _up(least: float, most: float, logarithmic: bool) -> Callable[[float], float]:
    """Where a rate lies, in pixels from the top."""
    low, high = (math.log(max(least, 1e-9)), math.log(most)) if logarithmic else (0.0, most)

    def place(value: float) -> float:
        at = math.log(max(value, 1e-9)) if logarithmic else value
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (at - low) / ((high - low) or 1.0)

    return place


def _axes(
    sizes: tuple[ScaleSize, ...], least: float, most: float, logarithmic: bool,
    x: Callable[[float], float], y: Callable[[float], float],
) -> Iterator[str]:  # fmt: skip
    """Lines behind all else, with round rates, or with doublings of the base where both axes are
    logarithmic; the sizes that were run below, as far as they have room."""
    if logarithmic:
        step = max(1, math.ceil(math.log2(most / max(least, 1e-9)) / MOST_TICKS))
        ticks = [sizes[0].rate * 2 ** (step * at) for at in range(MOST_TICKS + 1)]
    else:
        unit = 10 ** math.floor(math.log10(most / MOST_TICKS))
        step_of = next(unit * m for m in (1, 2, 5, 10) if most / (unit * m) <= MOST_TICKS)
        ticks = [step_of * at for at in range(MOST_TICKS + 1)]
    for tick in ticks:
        if tick <= most * 1.001:
            yield (
                f'<line class="grid" x1="{LEFT}%" x2="{RIGHT}%" y1="{y(tick):.1f}" '
                f'y2="{y(tick):.1f}"/><text x="{LEFT}%" dx="-6" y="{y(tick) + 4:.1f}" '
                f'text-anchor="end">{short(tick)}</text>'
            )
    if logarithmic:
        words = "both axes are logarithmic"
        yield f'<text class="soft" x="{LEFT}%" dx="6" y="{TOP - 8}">{words}</text>'
    before = -99.0
    for one in sizes:
        at = x(one.ranks)
        yield (
            f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        last = one is sizes[-1]
        if last or (at - before > 4 and x(sizes[-1].ranks) - at > 8):
            before = at
            words = f"{one.ranks} ranks" if last else str(one.ranks)
            yield f'<text x="{at:.2f}%" y="{HEIGHT - 8}" text-anchor="middle">{words}</text>'


def _ideal(
    sizes: tuple[ScaleSize, ...], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    """No further than the largest size that was run."""
    a, b = sizes[0], sizes[-1]
    if a.ideal is None or b.ideal is None:
        return
    xs, ys = (x(a.ranks), x(b.ranks)), (y(a.ideal), y(b.ideal))
    for dash in range(0, 2 * DASHES, 2):
        yield _line("ideal", xs, ys, dash / (2 * DASHES), (dash + 1) / (2 * DASHES))
    yield (
        f'<text class="soft" x="{xs[1]:.2f}%" dx="-8" y="{ys[1] - 6:.1f}" text-anchor="end">ideal'
        "</text>"
    )


def _line(kind: str, xs: tuple[float, float], ys: tuple[float, float], a: float, b: float) -> str:
    """From one share of the way between the two ends to another."""
    x1, x2 = (xs[0] + (xs[1] - xs[0]) * at for at in (a, b))
    y1, y2 = (ys[0] + (ys[1] - ys[0]) * at for at in (a, b))
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'


def _measured(
    sizes: tuple[ScaleSize, ...], x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    """Each size is a point with its spread as a line through it, its efficiency below."""
    for a, b in pairwise(sizes):
        yield _line("rate", (x(a.ranks), x(b.ranks)), (y(a.rate), y(b.rate)), 0.0, 1.0)
    for one in sizes:
        at, high, low, mid = x(one.ranks), y(one.high), y(one.low), y(one.rate)
        words = "" if one.efficiency is None else f", {one.efficiency:.1%} of the ideal"
        title = f"{one.ranks} ranks: {one.rate:.4g} ({one.low:.4g} to {one.high:.4g}){words}"
        yield (
            f'<g><title>{escape(title)}</title><line class="rate" x1="{at:.2f}%" x2="{at:.2f}%" '
            f'y1="{high:.1f}" y2="{low:.1f}"/><circle cx="{at:.2f}%" cy="{mid:.1f}" r="4"/></g>'
        )
        if one.efficiency is not None:
            yield f'<text x="{at:.2f}%" dx="8" y="{mid + 15:.1f}">{one.efficiency:.0%}</text>'


def bar(one: ScaleSize) -> str:
    """All the ranks' time of one size: what the ideal needs, then each lost part."""
    if one.efficiency is None or one.loss is None:
        return ""
    at = min(1.0, one.efficiency)
    drawn = [_part("s-ideal", 0.0, at, "as the ideal")]
    drawn.append(f'<text x="0" dx="4" y="13">{one.efficiency:.1%}</text>')
    for name, share in parts(one.loss, one.efficiency):
        drawn.append(_part(f"s-{name}", at, share, REASONS[name]))
        if share > 0.12:
            drawn.append(f'<text x="{100 * at:.2f}%" dx="4" y="13">{share:.1%}</text>')
        at += share
    return drawing(ROW, drawn)


def _part(kind: str, begins: float, share: float, words: str) -> str:
    title = f"{words}: {share:.1%}"
    return (
        f'<rect class="{kind}" x="{100 * begins:.2f}%" y="0" width="{100 * share:.2f}%" '
        f'height="{ROW}"><title>{escape(title)}</title></rect>'
    )
