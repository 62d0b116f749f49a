"""`muster report` at the command line: what it answers, and what it refuses with which fix."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from muster.commands.parser import main
from tests.launcher.support.generated_records import Made, write_record


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_record(str(tmp_path / "a"), Made(seconds=30, steps=10))
    write_record(str(tmp_path / "b"), Made(seconds=60, steps=10, fails=1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_is_written_and_the_verdict_printed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "b", "-o", "x.html"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Rank 1 on algo-1 failed: ValueError: the batch is empty\n")
    assert "page  x.html" in printed
    assert main(["report", "a", "b"]) == 0
    assert [one.name for one in runs.glob("report-*.html")] == [
        "report-digits-4-and-digits-4--2-.html"
    ]


def test_the_figures_are_printed_as_json_also_without_jinja(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["failure"]["rank"]) == (1, 1)
    assert main(["report", "a", "b", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert main(["report", "b"]) == 2
    assert "pip install jinja2" in capsys.readouterr().err
    assert not list(runs.glob("*.html"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent"], "muster history lists them|there are no runs"),
        (["empty"], "empty has no record of muster"),
        (["a", "-o", "empty"], "empty cannot be written: it is a folder"),
        (["a", "-o", "none/x.html"], "none/x.html cannot be written"),
        (["a", "--json", "-o", "x"], "leave one of them out"),
        (["a", "b", "c"], "one argument too many"),
        ([], "there are no runs"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (runs / "empty").mkdir()
    assert main(["report", *words]) == 2
    printed = capsys.readouterr().err
    assert any(one in printed for one in said.split("|")), printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", ["a", "a/algo-1", "a/algo-2"])
def test_a_folder_in_which_a_host_listens_is_of_a_job_that_runs(
    runs: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As output/data/muster of a job that is no run of `muster local`, or a host's folder."""
    (runs / "a" / "summary.json").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("a/algo-1/control")
        assert main(["report", name, "--json"]) == 0
        assert "is running" not in json.loads(capsys.readouterr().out)["verdict"]["headline"]
        listener.listen()
        assert main(["report", name, "--json"]) == 0
        assert "is running" in json.loads(capsys.readouterr().out)["verdict"]["headline"]


def test_what_is_no_file_is_not_replaced_by_the_page(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As root that would be /dev/null, for all programs of the machine."""
    os.mkfifo("pipe")
    os.symlink("pipe", "link")
    for name in ("pipe", "link"):
        assert main(["report", "a", "-o", name]) == 2
        assert f"{name} cannot be written: it is no regular file" in capsys.readouterr().err
    assert (runs / "pipe").is_fifo()
    assert (runs / "link").is_symlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_another_users_run_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "a").chmod(0)
    try:
        assert main(["report", "a"]) == 2
    finally:
        (runs / "a").chmod(0o700)
    assert "belongs to another user" in capsys.readouterr().err
