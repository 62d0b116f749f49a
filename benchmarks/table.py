"""Rows of figures with their bounds, as a table for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Bound(NamedTuple):
    """`text` says what is demanded, `met` whether it holds."""

    text: str
    met: bool


class Row(NamedTuple):
    """One figure of ours beside its peers', all in `unit`; `detail` says what it was made of.

    `ours` None: not measured, so neither met nor missed; a peer's text stands where there is no
    figure of it. `more_is_better`: a rate.
    """

    what: str
    unit: str
    ours: float | None
    peers: Mapping[str, float | str]
    bounds: tuple[Bound, ...]
    detail: str = ""
    more_is_better: bool = False

    @property
    def met(self) -> bool:
        return all(bound.met for bound in self.bounds)

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return "not run"
        return "-" if not self.bounds else "met" if self.met else "NOT met"


def under(value: float, limit: float, unit: str, what: str = "") -> Bound:
    """`what` names the value where it is not the row's own."""
    return Bound(f"{what} under {limit:g} {unit}".lstrip(), value < limit)


def at_least(value: float, limit: float, unit: str) -> Bound:
    return Bound(f"at least {limit:g} {unit}", value >= limit)


def at_least_times(factor: float, peer: float, ours: float) -> Bound:
    """The peer's figure is at least `factor` times ours."""
    return Bound(f"at least {factor:g}x less than the peer", peer >= factor * ours)


def missed(rows: Sequence[Row]) -> list[Row]:
    """The rows that were measured and do not meet a bound."""
    return [row for row in rows if row.ours is not None and not row.met]


def render(rows: Sequence[Row]) -> str:
    """The table; a ratio says how many times better ours is."""
    lines = [("what", "ours", "peers", "must", "")]
    for row in rows:
        peers = ", ".join(f"{name} {_beside(row, value)}" for name, value in row.peers.items())
        must = ", ".join(bound.text for bound in row.bounds)
        ours = "-" if row.ours is None else _figure(row.ours, row.unit)
        lines.append((row.what, ours, peers or "-", must or "-", row.verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines]  # fmt: skip
    text += [f"{row.what}: {row.detail}" for row in rows if row.detail]
    return "\n".join(text)


def to_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The rows as JSON objects; `met` is null where nothing was measured."""
    return [
        {
            **row._asdict(),
            "peers": dict(row.peers),
            "bounds": [bound._asdict() for bound in row.bounds],
            "met": None if row.ours is None else row.met,
        }
        for row in rows
    ]


def _beside(row: Row, peer: float | str) -> str:
    if isinstance(peer, str):
        return peer
    if not row.ours or not peer:
        return _figure(peer, row.unit)
    times = row.ours / peer if row.more_is_better else peer / row.ours
    return f"{_figure(peer, row.unit)} ({times:.1f}x)"


def _figure(value: float, unit: str) -> str:
    digits = 3 if value < 10 else 0 if value == int(value) else 1
    return f"{value:.{digits}f} {unit}"
