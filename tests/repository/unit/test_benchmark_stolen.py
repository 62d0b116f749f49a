"""How much of the processors' time the machine's host gave to others."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stolen import Times, read_times, stolen_percent


def test_stolen_time_is_a_share_of_what_was_wanted(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 1 40 9000 50 2 3 54 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert read_times(stat) == Times(wanted=200, stolen=54)
    assert stolen_percent(Times(100, 4), Times(200, 54)) == 50.0
    assert stolen_percent(Times(100, 4), Times(100, 4)) == 0.0


def test_a_kernel_that_does_not_say_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("cpu 1 2 3 4\n")
    assert read_times(tmp_path / "old") is None and read_times(tmp_path / "none") is None
    assert stolen_percent(None, Times(1, 0)) is None
