"""The digits example under torchrun, without muster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
TWO_RANKS = [str(Path(sys.prefix, "bin", "torchrun")), "--standalone", "--nproc_per_node", "2"]


@pytest.mark.torch
@pytest.mark.timeout(320)
def test_every_rank_reaches_the_same_good_accuracy(tmp_path: Path) -> None:
    folders = {"SM_MODEL_DIR": str(tmp_path / "model"), "SM_OUTPUT_DATA_DIR": str(tmp_path / "out")}
    done = subprocess.run(
        [*TWO_RANKS, str(DIGITS / "train.py"), "--epochs", "12"],
        env={**os.environ, **folders}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch=") == 12  # rank 0 alone tells of progress
    metrics = [json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()]
    assert sorted(one["rank"] for one in metrics) == [0, 1]
    assert {one["world_size"] for one in metrics} == {2}
    (accuracy,) = {one["accuracy"] for one in metrics}
    assert accuracy >= 0.95
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.pt", "metrics.json"}
    assert [one["backend"] for one in metrics] == ["gloo", "gloo"]
