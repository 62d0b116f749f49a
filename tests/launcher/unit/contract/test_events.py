"""The table of events in the documents: whole, and what checks the records of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from muster.run.base import record
from tests.launcher.support.events import TABLE, problems, table

LINE: dict[str, Any] = {
    "schema": 1,
    "t": 1.5,
    "time": 2,
    "host": "algo-1",
    "rank": 3,
    "kind": "rank_ended",
    "status": -9,
    "stopped": False,
}


def test_rows_of_the_table_are_read_whole_and_each_is_there_once() -> None:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith(("| (all)", "| `"))]
    found = table()
    first = next(at for at, line in enumerate(lines) if line.startswith("| (all)"))
    last = max(at for at, line in enumerate(lines) if line.startswith("| `fault`"))
    assert len(found) == last + 1 - first
    assert len({row[:2] for row in found}) == len(found)
    assert {row.type.rstrip("?") for row in found if row.field} == {
        *("int", "float", "str", "bool", "list", "object")
    }
    assert f"version of this table: {record.SCHEMA}" in {row.meaning for row in found}
    assert {row.kind for row in found if not row.field} >= record.ENDING


def test_a_line_of_the_table_has_no_problem() -> None:
    assert problems(LINE) == []
    assert problems({**LINE, "rank": None}) == []
    del (short := dict(LINE))["rank"]
    assert problems(short) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kind": "unheard"}, "not in the table"),
        ({"kind": None}, "not in the table"),
        ({"kind": "step"}, "reserved"),
        ({"more": 1}, "more is not in the table"),
        ({"status": "1"}, "expected int"),
        ({"status": True}, "expected int"),
        ({"stopped": None}, "expected bool"),
        ({"rank": 1.0}, "expected int?"),
        ({"schema": 2}, "expected 1"),
    ],
)
def test_what_the_table_does_not_know_is_named(changes: dict[str, Any], word: str) -> None:
    (problem,) = problems({**LINE, **changes})
    assert word in problem
