"""The terminal that README shows is what a run still writes."""

from __future__ import annotations

import pytest

from scripts import pictures


@pytest.mark.torch
@pytest.mark.timeout(200)
def test_the_recorded_terminal_is_that_of_a_run_of_today() -> None:
    shown = pictures.texts(pictures.PICTURE.read_text(encoding="utf-8"))
    again = pictures.texts(pictures.draw(pictures.record()))
    assert any(line.startswith("FAILED algo-2 rank 1: ValueError") for line in shown)
    assert [*map(pictures.steady, again)] == [*map(pictures.steady, shown)]
