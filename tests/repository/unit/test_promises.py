"""docs/reference/promises.md and the tests: every promise has one, every mark names a promise."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "reference" / "promises.md"
CALLS = {"pytest.mark.promise", "case"}  # `case` makes the rows of test_bad_input
# rows of the reference that later parts of muster will promise; a part of them holds already
LATER = {"F45", "F46"}


def listed() -> list[str]:
    """The ids in the first column of the page's tables."""
    cells = re.findall(r"^\| ([FBHSE]\d\d(?: [FBHSE]\d\d)*) \|", PAGE.read_text(), re.MULTILINE)
    return [name for cell in cells for name in cell.split()]


def promised() -> set[str]:
    return set(listed())


def marked(path: Path) -> Iterator[str]:
    """The ids in the `promise` marks of a file, and in the tables of cases that it marks."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS:
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield from re.findall(r"^[FBHSE]\d\d$", argument.value)


@functools.cache
def proven() -> set[str]:
    return {name for path in TESTS.rglob("test_*.py") for name in marked(path)}


def test_every_promise_has_a_test() -> None:
    assert promised() - proven() == set()


def test_every_mark_names_a_promise() -> None:
    assert proven() - promised() - LATER == set()


def test_the_page_is_read_as_it_is_written() -> None:
    """A table that no expression matched would promise nothing."""
    assert {"F01", "F63", "B05", "B50", "S19"} <= promised()
    assert len(promised()) > 80


def test_an_id_is_that_of_one_promise() -> None:
    ids = listed()
    assert len(ids) == len(set(ids)), sorted(name for name in ids if ids.count(name) > 1)
