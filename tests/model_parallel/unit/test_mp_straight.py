"""Calls that run straight on: what becomes of answers, and of errors that are not the code's."""

from __future__ import annotations

import pytest

from muster_modelparallel.run.pipeline.suspended import StraightCall

pytestmark = pytest.mark.torch


def test_questions_are_answered_where_they_are_asked() -> None:
    call = StraightCall(lambda: [call.ask(1), call.ask(2)], lambda question: 10 * question)
    assert call.run().value == [10, 20]


def test_an_error_of_an_answer_is_raised_as_it_is_and_not_seen_by_the_code() -> None:
    error, left = ValueError("in a stage"), []

    def answer(_: object) -> None:
        raise error

    def function() -> str:
        try:
            call.ask(None)
        except Exception:
            return "went on"
        finally:
            left.append("finally")
        return "was answered"

    call = StraightCall(function, answer)
    with pytest.raises(ValueError) as raised:
        call.run()
    assert raised.value is error and error.__context__ is None
    assert left == ["finally"]


def test_an_error_of_the_code_is_its_own() -> None:
    error = KeyError("of the script")

    def function() -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        StraightCall(function, lambda _: None).run()
    assert raised.value is error
