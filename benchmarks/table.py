"""Rows of figures with their bounds, as a table for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Bound(NamedTuple):
    """`text` says what is demanded, `met` whether it holds."""

    text: str
    met: bool


class Row(NamedTuple):
    """One figure of ours beside its peers', all in `unit`; `detail` says what it was made of."""

    what: str
    unit: str
    ours: float
    peers: Mapping[str, float]
    bounds: tuple[Bound, ...]
    detail: str = ""

    @property
    def met(self) -> bool:
        return all(bound.met for bound in self.bounds)


def under(value: float, limit: float, unit: str) -> Bound:
    return Bound(f"under {limit:g} {unit}", value < limit)


def at_least_times(factor: float, peer: float, ours: float) -> Bound:
    """The peer's figure is at least `factor` times ours."""
    return Bound(f"at least {factor:g}x less than the peer", peer >= factor * ours)


def render(rows: Sequence[Row]) -> str:
    """The table; ratios are the peer's figure over ours."""
    lines = [("what", "ours", "peers", "must", "")]
    for row in rows:
        peers = ", ".join(
            f"{name} {_figure(value, row.unit)} ({value / row.ours:.1f}x)"
            for name, value in row.peers.items()
        )
        must = ", ".join(bound.text for bound in row.bounds)
        verdict = "met" if row.met else "NOT met"
        lines.append((row.what, _figure(row.ours, row.unit), peers or "-", must, verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines]  # fmt: skip
    text += [f"{row.what}: {row.detail}" for row in rows if row.detail]
    return "\n".join(text)


def to_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The rows as JSON objects."""
    return [
        {
            **row._asdict(),
            "peers": dict(row.peers),
            "bounds": [bound._asdict() for bound in row.bounds],
            "met": row.met,
        }
        for row in rows
    ]


def _figure(value: float, unit: str) -> str:
    return f"{value:.3f} {unit}" if value < 10 else f"{value:.1f} {unit}"
