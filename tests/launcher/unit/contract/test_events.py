"""The table of events: whole, and read by what checks the records of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from muster.run.base import record
from muster.types import events

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


def test_the_schema_that_is_written_is_that_of_the_table() -> None:
    assert record.SCHEMA == events.SCHEMA


def test_kinds_and_their_fields_have_names_of_their_own_and_meanings() -> None:
    common = [field.name for field in events.COMMON]
    for name, kind in events.KINDS.items():
        names = [*common, *(field.name for field in kind.fields)]
        assert len(set(names)) == len(names), name
        for field in (*events.COMMON, *kind.fields):
            assert field.type.rstrip("?") in ("int", "float", "str", "bool", "list", "object")
            assert field.meaning and "|" not in field.meaning
    assert events.KINDS.keys() >= record.ENDING


def test_a_line_of_the_table_has_no_problem() -> None:
    assert events.problems(LINE) == []
    assert events.problems({**LINE, "rank": None}) == []
    del (short := dict(LINE))["rank"]
    assert events.problems(short) == []


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
    (problem,) = events.problems({**LINE, **changes})
    assert word in problem
