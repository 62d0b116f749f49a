"""Metrics of a script under `muster local`: shown with a prefix, kept in the run folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from muster.sdk.metric_definitions import expression_for
from tests.launcher.support.local.local_runs import PROCESS, Start

TRAINS = """\
import muster
facts = muster.runtime.facts()
assert facts.job != "another", facts
for step in range(3):
    muster.metrics(step=step, loss=0.5 ** step)
"""


def test_one_host_s_line_matches_and_every_host_has_a_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    facts = tmp_path / "facts.json"
    facts.write_text('{"job": "another", "ranks": [5]}')
    environ = {"RUN_FACTS": str(facts)}
    result = start(tmp_path, ("train.py", "--hosts", "2", *PROCESS), environ=environ).wait()
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if "muster metrics" in line]
    assert [line.partition(" ")[0] for line in lines] == ["[algo-1:0]"] * 3
    found = [re.search(expression_for("loss"), line) for line in lines]
    assert [match and float(match[1]) for match in found] == [1.0, 0.5, 0.25]
    for rank, host in enumerate(("algo-1", "algo-2")):
        path = result.folder / host / "metrics" / f"rank-{rank}.jsonl"
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2]
    assert not re.search(r"^ +other ", result.err, re.MULTILINE)
