"""The table of figures: bounds are judged and shown, ratios are the peer's figure over ours."""

from __future__ import annotations

from benchmarks.table import Row, at_least_times, render, to_json, under


def _row(ours: float, peer: float) -> Row:
    bounds = (at_least_times(4, peer, ours), under(ours, 0.2, "s"))
    return Row("a job", "s", ours, {"peer": peer}, bounds)


def test_a_row_is_met_only_when_every_bound_holds() -> None:
    assert _row(0.1, 0.4).met
    assert not _row(0.1, 0.39).met
    assert not _row(0.2, 8.0).met


def test_the_table_says_which_rows_are_not_met() -> None:
    text = render([_row(0.1, 0.5), _row(0.3, 0.5)]).splitlines()
    assert text[1].endswith("  met") and "peer 0.500 s (5.0x)" in text[1]
    assert text[2].endswith("  NOT met")


def test_json_holds_every_bound_with_its_verdict() -> None:
    (row,) = to_json([_row(0.3, 1.5)])
    assert row["met"] is False
    assert row["bounds"] == [
        {"text": "at least 4x less than the peer", "met": True},
        {"text": "under 0.2 s", "met": False},
    ]
