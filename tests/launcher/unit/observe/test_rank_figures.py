"""Figures of ranks are read beside the loop, and never hold up the end of a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.run.base.loop import Loop
from muster.run.channel.digest import HostDigest, RankFigures
from muster.run.observe.rank_figures import READ_S, in_time, steps_in

KNOWN = HostDigest((RankFigures(4, 1.5),))
READ = HostDigest((RankFigures(4, 1.5, steps=7),))


def given(read: Callable[[], HostDigest]) -> list[HostDigest]:
    """What is given once the time to read is over."""
    loop, found = Loop(), list[HostDigest]()
    in_time(loop, lambda: KNOWN, read, found.append)
    loop.after(READ_S + 0.1, loop.stop)
    loop.run()
    return found


def test_what_was_read_is_given_once() -> None:
    assert given(lambda: READ) == [READ]


def test_a_disk_that_hangs_holds_nothing_up() -> None:
    reader, writer = os.pipe()

    def hangs() -> HostDigest:
        os.read(reader, 1)
        return READ

    began = time.monotonic()
    assert given(hangs) == [KNOWN]
    assert time.monotonic() - began < 5
    os.close(writer)


def test_a_defect_leaves_what_is_known() -> None:
    def fails() -> HostDigest:
        raise AssertionError("a defect")

    assert given(fails) == [KNOWN]


def test_without_a_thread_what_is_known_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_args: object, **_more: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refused)
    assert given(lambda: READ) == [KNOWN]


@pytest.mark.parametrize("step", ["-1", "true", "9223372036854775808", "1.5", "null"])
@pytest.mark.parametrize("time_s", ["2.0", "NaN", "1e999", "1" + 400 * "0"])
def test_of_what_a_script_wrote_there_only_steps_count(
    tmp_path: Path, step: str, time_s: str
) -> None:
    lines = [f'{{"time": {time_s}, "step": {step}}}\n', f'{{"time": {time_s}0, "step": 7}}\n']
    for at, line in enumerate(lines):
        path = tmp_path / f"rank-{at}.jsonl"
        path.write_text('{"time": 1.0, "step": 5}\n' + line)
    assert steps_in(str(tmp_path / "rank-0.jsonl")) == (5, None)
    steps, rate = steps_in(str(tmp_path / "rank-1.jsonl"))
    assert (steps, rate) == ((7, 2.0) if time_s == "2.0" else (5, None))


def test_the_rate_of_steps_that_are_counted_anew_is_of_the_last_count(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    steps = [*range(10), *range(10), *range(5)]
    path.write_text("".join(f'{{"time": {at}, "step": {step}}}\n' for at, step in enumerate(steps)))
    assert steps_in(str(path)) == (4, 1.0)
