"""`muster bench scale`: what it asks `muster local` for, and what it refuses at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.commands.parser import main
from muster.commands.records import bench
from muster.local.api.result import Result
from tests.launcher.support.scale_records import Costs, write_size


class Runs:
    """Takes the place of real jobs: a record for each, with twice the time of a step on 4 ranks."""

    def __init__(self, folder: Path, end_at: int = 0) -> None:
        self.asked: list[list[str]] = []
        self._folder = folder
        self._end_at = end_at

    def __call__(self, argv: Sequence[str]) -> Result:
        self.asked.append(list(argv))
        if len(self.asked) == self._end_at:
            raise KeyboardInterrupt
        words = dict(one.partition("=")[::2] for one in argv)
        ranks = int(words["--hosts"]) * int(words.get("--processes-per-host", "1"))
        folder = str(self._folder / f"run-{len(self.asked)}")
        write_size(folder, ranks, Costs(0.2 if ranks == 4 else 0.1))
        return Result(0, folder, {}, ())


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    found = Runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "_run", found)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return found


def test_sizes_run_in_turns_and_the_page_is_written(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ranks", "4,1,2", "-o", "x.html", "--", "--env=A=1", "--", "--epochs", "1"]
    assert main(["bench", "scale", "train.py", *words]) == 0
    hosts = [argv[1] for argv in runs.asked]
    assert hosts == ["--hosts=1", "--hosts=2", "--hosts=4"] * 2
    assert runs.asked[0] == ["train.py", "--hosts=1", "--env=A=1", "--", "--epochs", "1"]
    printed = capsys.readouterr()
    assert "4 ranks reach 50% of the ideal rate" in printed.out
    assert "run 6 of 6: 4 ranks" in printed.err
    said = "Up to 4 ranks share 2 processors: figures of sizes above 2 say nothing about machines"
    assert said in printed.err
    assert said in (tmp_path / "x.html").read_text()


def test_hosts_of_several_processes_are_full(runs: Runs) -> None:
    words = ["--ranks", "1,2,4", "--processes-per-host", "2", "--repeat", "1", "--json"]
    assert main(["bench", "scale", "t.py", *words, "--", "--distribution", "torchrun"]) == 0
    assert [argv[1:3] for argv in runs.asked] == [
        ["--hosts=1", "--processes-per-host=1"],
        ["--hosts=1", "--processes-per-host=2"],
        ["--hosts=2", "--processes-per-host=2"],
    ]


@pytest.mark.parametrize(("end_at", "page"), [(2, False), (3, True)])
def test_ctrl_c_keeps_what_there_is(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_at: int, page: bool
) -> None:
    monkeypatch.setattr(bench, "_run", Runs(tmp_path, end_at))
    assert main(["bench", "scale", "t.py", "--ranks", "1,2", "-o", "x.html"]) == 130
    assert (tmp_path / "x.html").exists() == page
    if page:
        assert "It was interrupted after 2 of 4 runs." in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale", "t.py", "--ranks", "2"], "2 to 16 different numbers"),
        (["scale", "t.py", "--ranks", "2,0"], "2 to 16 different numbers"),
        (["scale", "t.py", "--ranks", "1,x"], "2 to 16 different numbers"),
        (["scale", "t.py"], "--ranks"),
        (["skale", "t.py", "--ranks", "1,2"], "did you mean"),
        (["scale", "t.py", "--ranks", "1,9"], "ask for at most 8, or add --oversubscribe"),
        (["scale", "t.py", "--ranks", "2,5", "--processes-per-host", "2"], "ask for 4 or 6"),
        (["scale", "t.py", "--ranks", "1,2", "--", "--hosts=3"], "has to set it"),
        (["scale", "t.py", "--ranks", "1,2", "--json", "-o", "x"], "leave one of them out"),
        (["scale", "t.py", "--ranks", "1,101", "--oversubscribe"], "more than 100"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    runs: Runs, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err
    assert not runs.asked
