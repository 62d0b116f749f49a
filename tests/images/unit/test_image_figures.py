"""Figures of the page on images and of docs/compare.md are from the last `make bench-images`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scripts.images.pins import CHECKOUT

TABLE = (CHECKOUT / "docs/how-to/images/README.md").read_text().partition("## Measured")[2]
COMPARED = (CHECKOUT / "docs" / "compare.md").read_text()
ROWS: dict[str, dict[str, Any]] = {
    row["what"]: row
    for row in json.loads((CHECKOUT / "benchmarks" / "results" / "images.json").read_text())["rows"]
}
STOP = "docker stop of an idle script"
START = "container start to the script's first line"
BEYOND = "the same, beyond bare python in a container"


def row(beginning: str) -> str:
    found = re.search(rf"^\| {re.escape(beginning)}.*$", TABLE, re.MULTILINE)
    assert found, beginning
    return found[0]


def peer(what: str) -> float:
    (found,) = ROWS[what]["peers"].values()
    return float(found)


@pytest.mark.parametrize(
    ("beginning", "figures"),
    [
        ("`cpu`, unpacked", [f"{ROWS['cpu image, unpacked, beside the base']['ours']:.0f} MB"]),
        ("rebuild after", [f"{ROWS['rebuild after a toolkit-only change']['ours']:.1f} s"]),
        ("what that uploads", [f"{ROWS['upload after a toolkit-only change']['ours']:.1f} MB"]),
        ("`docker stop`", [f"{peer(STOP):.1f} s and 137", f"{ROWS[STOP]['ours']:.2f} s and 143"]),
        ("container start", [f"{peer(START):.2f} s", f"{ROWS[START]['ours']:.2f} s"]),
        ("the same, beyond", [f"{peer(BEYOND):.2f} s", f"{ROWS[BEYOND]['ours']:.2f} s"]),
    ],
)
def test_a_figure_of_the_docs_is_the_last_run_s(beginning: str, figures: list[str]) -> None:
    assert [figure for figure in figures if figure not in row(beginning)] == []


def test_the_comparison_has_the_same_figures() -> None:
    for what in (START, BEYOND):
        assert f"| {peer(what):.2f} s | {ROWS[what]['ours']:.2f} s" in COMPARED
    assert f"| {peer(STOP):.1f} s, exit 137 | {ROWS[STOP]['ours']:.2f} s, exit 143 |" in COMPARED
    size_gb = ROWS["cpu image, unpacked, beside the base"]["ours"] / 1000
    rebuild_s = ROWS["rebuild after a toolkit-only change"]["ours"]
    assert f"{size_gb:.2f} GB; a change of the toolkit rebuilds in {rebuild_s:.1f} s" in COMPARED
