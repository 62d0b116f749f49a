"""What `muster.local` reads from the record of a run, also from one that was cut off."""

from __future__ import annotations

import json
from pathlib import Path

from muster.local.api.result import read_result


def test_metrics_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    for number in (0, 1):
        host = tmp_path / f"algo-{number + 1}"
        (host / "metrics").mkdir(parents=True)
        lines = [
            json.dumps({"schema": 1, "step": step, "values": {"loss": 0.5}}) for step in range(2)
        ]
        text = "\n".join([*lines, "[1]", '{"schema": 1, "st'])
        (host / f"metrics/rank-{number}.jsonl").write_text(text)
    ranks = [{"rank": n, "host": f"algo-{n + 1}", "status": 0} for n in (1, 0)]
    (tmp_path / "summary.json").write_text(json.dumps({"ranks": ranks}))
    result = read_result(0, str(tmp_path))
    found = [
        (one["rank"], one["host"], one["step"], one["values"]["loss"]) for one in result.metrics
    ]
    assert found == [
        (0, "algo-1", 0, 0.5),
        (0, "algo-1", 1, 0.5),
        (1, "algo-2", 0, 0.5),
        (1, "algo-2", 1, 0.5),
    ]


def test_ranks_of_a_run_without_a_summary_are_those_that_wrote(tmp_path: Path) -> None:
    (tmp_path / "algo-2/logs").mkdir(parents=True)
    (tmp_path / "algo-2/logs/rank-3.out").write_text("step 1\n")
    (tmp_path / "summary.json").write_text('{"ranks": [')
    result = read_result(137, str(tmp_path))
    assert [(rank.number, rank.host, rank.exit_code) for rank in result.ranks] == [
        (3, "algo-2", None)
    ]
    assert result.rank(3).stdout == "step 1\n"
    assert result.rank(3).stderr == ""
    assert str(result.failure) == "the run ended with exit code 137"


def test_what_a_launcher_said_is_the_text_where_no_rank_ran(tmp_path: Path) -> None:
    (tmp_path / "algo-1/logs").mkdir(parents=True)
    (tmp_path / "algo-1/logs/launcher.log").write_text("python: No module named 'torch'\n")
    outcome = {
        "result": "Failed", "headline": "LaunchError: it ended", "fix": "see its lines below",
        "first": None,
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps({"outcome": outcome}))
    result = read_result(106, str(tmp_path))
    assert result.failure is not None
    assert result.failure.text == "python: No module named 'torch'"


def test_a_run_without_a_folder_has_an_end(tmp_path: Path) -> None:
    result = read_result(143, "")
    assert (result.succeeded, result.ranks, result.metrics) == (False, (), ())
