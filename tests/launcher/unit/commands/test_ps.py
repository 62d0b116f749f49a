"""`muster ps`: the columns, and what programs get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.commands.parser import main
from muster.local import control_client
from muster.local.control_client import LiveRun

RANK = {"host": "algo-1", "rank": 0, "pid": 101, "step": 40, "rate": 2.5, "silent_s": 3.0,
        "cpu_share": 0.97, "state": "R", "ended": None, "own_s": None, "own_p95_s": None,
        "slow": False}  # fmt: skip
LATE = {**RANK, "host": "algo-2\x1b[31m", "rank": 1, "own_s": 0.125, "own_p95_s": 0.131,
        "slow": True}  # fmt: skip


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the run answers."""
    said: dict[str, Any] = {"ranks": [RANK], "silent": []}
    monkeypatch.setattr(
        control_client, "find", lambda name: LiveRun("/runs/x", ("/runs/x/algo-1",))
    )
    monkeypatch.setattr(control_client, "ask", lambda run, request: said)
    monkeypatch.setattr(control_client, "count_here", lambda run, ranks: None)
    return said


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["ps", *words]) == 0
    return capsys.readouterr().out


def test_a_rank_is_a_line(answered: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    head, row = (line.split() for line in shown(capsys).splitlines())
    assert head == ["HOST", "RANK", "PID", "STEP", "STEPS/S", "OUTPUT", "CPU", "STATE"]
    assert row == ["algo-1", "0", "101", "40", "2.5", "3", "s", "ago", "97", "%", "R"]


def test_own_times_are_columns_once_they_are_known(
    answered: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered["ranks"] = [RANK, LATE]
    answered["silent"] = ["algo-3"]
    head, one, late, silent = shown(capsys).splitlines()
    assert head.split()[-2:] == ["OWN", "P95"]
    assert one.split()[-2:] == ["-", "-"]
    assert late.split()[-5:] == ["125", "ms", "131", "ms", "slow"] and "\x1b" not in late
    assert silent == "did not answer: algo-3"


def test_of_a_rank_that_is_not_known_or_has_ended_nothing_is_made_up(
    answered: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = dict.fromkeys(("pid", "step", "rate"))
    answered["ranks"] = [{**RANK, **unknown, "ended": 1, "state": "ended with exit code 1"}]
    row = shown(capsys).splitlines()[1].split()
    assert row == ["algo-1", "0", "-", "-", "-", "-", "-", "ended", "with", "exit", "code", "1"]


def test_programs_get_all_of_it(
    answered: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered["added"] = [1]  # by a newer version
    assert json.loads(shown(capsys, "--json")) == answered


def test_another_version_is_said(
    answered: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answered["ranks"] = [{"host": "algo-1"}]
    assert main(["ps"]) == 2
    assert "x is of another version of muster" in capsys.readouterr().err
    assert json.loads(shown(capsys, "--json")) == answered
