"""The terminal that README shows is what a run still writes, as PyTorch's quick start says."""

from __future__ import annotations

import re

import pytest

from scripts import pictures


@pytest.mark.torch
@pytest.mark.timeout(200)
def test_the_recorded_terminal_is_that_of_a_run_of_today_and_names_the_rank_as_its_page_does() -> (
    None
):
    page = (pictures.CHECKOUT / "docs/start/pytorch-ddp.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"^FAILED .*$", page, re.MULTILINE)
    assert " ".join(["muster local", str(pictures.SCRIPT), *pictures.ARGUMENTS]) in page
    shown = pictures.texts(pictures.PICTURE.read_text(encoding="utf-8"))
    again = pictures.texts(pictures.draw(pictures.record()))
    assert named in [line.strip() for line in again]
    assert [*map(pictures.steady, again)] == [*map(pictures.steady, shown)]
