"""Hyperparameters as arguments, form by form."""

from __future__ import annotations

import pytest

from muster.contract.request.hyperparameters import to_argv


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1e-3", "1e-3"),
        (0.0001, "0.0001"),
        (True, "True"),
        (None, ""),
        ([1, "x"], "[1, 'x']"),
        ({"k": {"z": 1}, "j": [1, 2]}, "j=[1, 2],k={'z': 1}"),
        ({}, ""),
        ("007", "007"),
        (10**30, "1" + "0" * 30),
        ("-0.5", "-0.5"),
    ],
)
def test_values_keep_the_spelling_that_scripts_parse(value: object, text: str) -> None:
    assert to_argv({"x": value}) == ("-x", text)


def test_names_are_sorted_and_only_single_characters_get_one_dash() -> None:
    argv = to_argv({"lr": 1, "b": 2, "B": 3, "a-b": 4})
    assert argv == ("-B", "3", "--a-b", "4", "-b", "2", "--lr", "1")


def test_a_number_keeps_the_spelling_that_it_arrived_with() -> None:
    numbers = {"tag": 1.1, "lr": 0.001, "n": 5, "flag": True, "text": "1.10"}
    texts = {"tag": " 1.10", "lr": "1e-3", "n": "5", "flag": "true", "text": '"1.10"'}
    argv = to_argv(numbers, texts)
    assert dict(zip(argv[::2], argv[1::2], strict=True)) == {
        "--tag": "1.10",
        "--lr": "1e-3",
        "-n": "5",
        "--flag": "True",
        "--text": "1.10",
    }
