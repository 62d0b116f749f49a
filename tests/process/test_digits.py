"""The digits example learns alone and on several ranks, and the demo believes no one's word."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
ONE_PROCESS = [sys.executable]
TWO_RANKS = [str(Path(sys.prefix, "bin", "torchrun")), "--standalone", "--nproc_per_node", "2"]


@pytest.mark.torch
@pytest.mark.parametrize(("launcher", "ranks"), [(ONE_PROCESS, 1), (TWO_RANKS, 2)])
def test_every_rank_reaches_the_same_good_accuracy(
    launcher: list[str], ranks: int, tmp_path: Path
) -> None:
    folders = {"SM_MODEL_DIR": str(tmp_path / "model"), "SM_OUTPUT_DATA_DIR": str(tmp_path / "out")}
    done = subprocess.run(
        [*launcher, str(DIGITS / "train.py"), "--epochs", "12"],
        env={**os.environ, **folders}, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch=") == 12  # rank 0 alone tells of progress
    metrics = [json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()]
    assert sorted(one["rank"] for one in metrics) == list(range(ranks))
    assert {one["world_size"] for one in metrics} == {ranks}
    (accuracy,) = {one["accuracy"] for one in metrics}
    assert accuracy >= 0.95
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.pt", "metrics.json"}


def _demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits_demo", DIGITS / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _run_folder(folder: Path, accuracies: tuple[float, ...], result: str = "Succeeded") -> Path:
    (folder / "summary.json").write_text(json.dumps({"outcome": {"result": result}}))
    for rank, accuracy in enumerate(accuracies):
        output = folder / f"algo-{rank + 1}/opt/ml/output/data"
        output.mkdir(parents=True)
        content = {"rank": rank, "world_size": 2, "accuracy": accuracy, "seconds": 1.0}
        (output / f"metrics-rank{rank}.json").write_text(json.dumps(content))
    (folder / "algo-1/opt/ml/model").mkdir()
    (folder / "algo-1/opt/ml/model/model.pt").write_bytes(b"")
    return folder


def _checked(folder: Path) -> Any:
    demo = _demo()
    return demo.check(folder, demo.read_ranks(folder))


def test_the_demo_accepts_ranks_that_agree(tmp_path: Path) -> None:
    assert _checked(_run_folder(tmp_path, (0.97, 0.97))) == 0.97


@pytest.mark.parametrize(
    ("accuracies", "result", "why"),
    [
        ((0.97, 0.96), "Succeeded", "different accuracies"),
        ((0.94, 0.94), "Succeeded", "below 0.95"),
        ((0.97,), "Succeeded", "expected ranks 0 to 1"),
        ((0.97, 0.97), "Failed", "is Failed"),
    ],
)
def test_the_demo_refuses(
    accuracies: tuple[float, ...], result: str, why: str, tmp_path: Path
) -> None:
    folder = _run_folder(tmp_path, accuracies, result)
    with pytest.raises(Exception, match=why):
        _checked(folder)


def test_the_demo_refuses_a_run_without_a_model(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path, (0.97, 0.97))
    (folder / "algo-1/opt/ml/model/model.pt").unlink()
    with pytest.raises(Exception, match="no model"):
        _checked(folder)
