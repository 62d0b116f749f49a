"""What reaches a screen: which ranks, and lines of ours of a length that can be read."""

from __future__ import annotations

import pytest

from muster.types.plain import SHOWN, WIDTH, short, wrapped
from muster.types.shown import parse_ranks


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0", {0}),
        ("last", {7}),
        ("0,last", {0, 7}),
        ("2-4", {2, 3, 4}),
        (" 1 , 5 - last", {1, 5, 6, 7}),
        ("last-last,0-0", {0, 7}),
        ("100", set()),
    ],
)
def test_ranks_are_chosen_by_number_range_and_last(text: str, shown: set[int]) -> None:
    ranks = parse_ranks(text)
    assert {rank for rank in range(8) if ranks.has(rank, 8)} == shown


@pytest.mark.parametrize("text", ["", "a", "0,", "-1", "1-", "0-x", "first", "1e3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected numbers of ranks"):
        parse_ranks(text)


def test_no_line_of_ours_is_too_long_and_no_word_is_lost() -> None:
    long = "muster local: " + "word " * 200 + "/a/path/" + "x" * 50
    lines = wrapped(f"short\n{long}").split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == "short"
    assert " ".join(lines[1:]).split() == long.split()


@pytest.mark.parametrize(
    ("value", "first", "last"),
    [
        ("x" * 59, "'xxx", "...'"),
        ("x" * 1_000_000, "'xxx", "...'"),
        ("\n" * 60, "'\\n\\n", "...'"),
        (["a"] * 60, "['a', ", "...]"),
        (10**80, "1000", "0..."),
        ("it's", '"it\'s"', '"'),
        (None, "None", "None"),
    ],
)
def test_a_value_in_an_error_is_one_short_line_with_its_last_quote(
    value: object, first: str, last: str
) -> None:
    shown = short(value)
    assert len(shown) <= SHOWN and "\n" not in shown
    assert shown.startswith(first) and shown.endswith(last)
