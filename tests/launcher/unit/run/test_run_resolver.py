"""Look-ups beside the loop: whoever asked gets an answer, whatever happens to the look-up."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from muster.run.base.loop import Loop
from muster.run.base.resolver import in_background


def asked(look_up: object) -> list[Sequence[str]]:
    """All answers that arrive within a moment."""
    loop = Loop()
    answers: list[Sequence[str]] = []

    def done(found: Sequence[str]) -> None:
        answers.append(found)
        loop.stop()

    loop.after(5, loop.stop)
    in_background(loop, look_up, done)  # type: ignore[arg-type]
    loop.run()
    loop.close()
    return answers


def fails() -> Sequence[str]:
    raise MemoryError


def test_an_answer_comes_back() -> None:
    assert asked(lambda: ["10.0.0.1"]) == [["10.0.0.1"]]


def test_a_look_up_that_breaks_is_no_answer() -> None:
    assert asked(fails) == [()]


@pytest.mark.promise("F16")
def test_a_thread_that_cannot_be_started_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asked(lambda: ["10.0.0.1"]) == [()]
