"""The page: one file of HTML that loads nothing and runs no script but its own two."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import resources

from muster.report import scale_svg, svg
from muster.report.charts import Chart
from muster.report.compare import Comparison
from muster.report.figures import RunFigures, as_json
from muster.report.scale import KINDS, REASONS, ScaleFigures
from muster.report.values import RankRow
from muster.report.verdict import duration
from muster.types.plain import size_text
from muster.version import __version__

MOST_RANKS = 2048
SHOWN_RANKS = 32  # a longer table scrolls in its place


class NoJinja(Exception):  # noqa: N818 - the caller says how to install it
    """Jinja2 is not installed."""


def page(figures: RunFigures) -> str:
    """The page of one run. Raises NoJinja."""
    return _render(figures.name, [figures], None)


def comparison_page(comparison: Comparison, runs: Sequence[RunFigures]) -> str:
    """The page of two runs: what differs, charts of both, their timelines. Raises NoJinja."""
    return _render(f"{runs[0].name} and {runs[1].name}", runs, comparison)


def scale_page(figures: ScaleFigures) -> str:
    """The page of one program at several sizes; without script. Raises NoJinja."""
    style = _file("page.css")
    return _fill(
        "scale.html",
        title=f"scaling of {figures.name}",
        policy=_policy(style, []),
        style=style,
        version=__version__,
        figures=figures,
        kinds=KINDS,
        reasons=REASONS,
        drawing=scale_svg,
    )


def _render(title: str, runs: Sequence[RunFigures], comparison: Comparison | None) -> str:
    drawn = runs[0].charts if comparison is None else comparison.charts
    has_charts = bool(drawn)
    style = _file("page.css") + (_file("uplot.css") if has_charts else "")
    scripts = [_file("uplot.js"), _file("page.js")] if has_charts else []
    return _fill(
        "page.html",
        title=title,
        runs=runs,
        comparison=comparison,
        charts=drawn,
        style=style,
        scripts=scripts,
        policy=_policy(style, scripts),
        data=embedded([as_json(chart) for chart in drawn]),
        timeline=svg.timeline,
        hidden_hosts=svg.hidden_hosts,
        many=svg.MANY,
        phases=svg.longest_phases,
        chart=svg.chart,
        columns=_columns,
        legend=_legend,
        range=_range,
        failed_first=_failed_first,
        shown_ranks=SHOWN_RANKS,
        most_ranks=MOST_RANKS,
        version=__version__,
    )


def _fill(name: str, **values: object) -> str:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError:
        raise NoJinja from None

    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=_or_dash(duration),
        brief=_or_dash(_brief),
        size=_or_dash(size_text),
        plain=_plain,
        percent=_or_dash(_percent),
    )
    return environment.get_template(name).render(values).lstrip()


def _policy(style: str, scripts: Sequence[str]) -> str:
    return "; ".join([
        "default-src 'none'",
        f"style-src {_hash(style)}",
        f"script-src {' '.join(map(_hash, scripts)) or _NONE}",
        "base-uri 'none'",
        "form-action 'none'",
    ])  # fmt: skip


_NONE = "'none'"


def embedded(value: object) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or a line."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _columns(figures: RunFigures) -> list[str]:
    """Columns of the table of ranks for which at least one rank has a value."""
    names = ("seconds", "cpus", "peak_memory_bytes", "run_delay_s", "throttled_s", "steps", "rate",
             "sample_rate", "waits_s")  # fmt: skip
    return [one for one in names if any(getattr(rank, one) is not None for rank in figures.ranks)]


def _legend(chart: Chart) -> list[tuple[int, str]]:
    return [(at % svg.COLORS, line.name) for at, line in enumerate(chart.lines)]


def _range(chart: Chart) -> str:
    values = [v for line in chart.lines for v in (*line.low, *line.high) if v is not None]
    return f"{_plain(min(values))} to {_plain(max(values))}" if values else "no values"


def _failed_first(figures: RunFigures) -> list[RankRow]:
    return sorted(figures.ranks, key=lambda rank: rank.good is not False)[:MOST_RANKS]


def _or_dash(words: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else words(value)


def _plain(value: float | None) -> str:
    """A number in a table."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def _brief(seconds: float) -> str:
    """A short time: `12.5 ms`."""
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _percent(value: float) -> str:
    return f"{value:.1%}"
