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


def test_a_picture_loads_nothing_from_elsewhere() -> None:
    for picture in pictures.PICTURE.parent.glob("*.svg"):
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "http" not in text.replace("https://www.textualize.io", ""), picture.name
        assert "url(" not in text.replace("url(#", "")
