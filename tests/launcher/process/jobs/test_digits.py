"""The digits example trains over the backend that the job asks for, and the demo believes no one's
word."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DIGITS = Path(__file__).resolve().parents[4] / "examples" / "digits"


BACKENDS: list[tuple[dict[str, bool], str | None, str]] = [
    ({}, None, "gloo"),
    ({"sagemaker_torch_distributed_enabled": True}, None, "gloo"),
    ({"sagemaker_pytorch_ddp_enabled": True}, None, "gloo"),
    ({"sagemaker_distributed_dataparallel_enabled": False}, None, "gloo"),
    ({"sagemaker_distributed_dataparallel_enabled": True}, None, "smddp"),
    ({"sagemaker_distributed_dataparallel_enabled": True}, "gloo", "gloo"),
    ({}, "smddp", "smddp"),
]


@pytest.mark.torch
def test_the_backend_is_the_hyperparameter_s_else_the_distribution_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one test: one process imports torch."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    train = _module("train")
    for asked, option, backend in BACKENDS:
        monkeypatch.setenv("SM_FRAMEWORK_PARAMS", json.dumps(asked))
        assert train.backend_of(argparse.Namespace(backend=option)) == backend, asked


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"digits_{name}", DIGITS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _run_folder(
    folder: Path, accuracies: tuple[float, ...], result: str = "Succeeded", backend: str = "gloo"
) -> Path:
    (folder / "summary.json").write_text(json.dumps({"outcome": {"result": result}}))
    for rank, accuracy in enumerate(accuracies):
        output = folder / f"algo-{rank + 1}/opt/ml/output/data"
        output.mkdir(parents=True)
        content = {
            "rank": rank, "world_size": 2, "accuracy": accuracy, "seconds": 1.0, "backend": backend,
        }  # fmt: skip
        (output / f"metrics-rank{rank}.json").write_text(json.dumps(content))
    (folder / "model").mkdir()
    (folder / "model/model.pt").write_bytes(b"")
    return folder


def _checked(folder: Path, *distribution: str) -> Any:
    demo = _module("demo")
    return demo.check(folder, demo.read_ranks(folder), *distribution)


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
    (folder / "model/model.pt").unlink()
    with pytest.raises(Exception, match="no model"):
        _checked(folder)


@pytest.mark.parametrize("name", ["smdistributed.dataparallel", "smddp", "pytorchddp"])
def test_the_demo_refuses_data_parallel_ranks_that_trained_over_gloo(
    name: str, tmp_path: Path
) -> None:
    folder = _run_folder(tmp_path, (0.97, 0.97))
    with pytest.raises(Exception, match=r"is to train over smddp, ranks used \['gloo'\]"):
        _checked(folder, name)
    assert _checked(folder, "mpi") == 0.97


def test_the_demo_accepts_data_parallel_ranks_over_smddp(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path, (0.97, 0.97), backend="smddp")
    assert _checked(folder, "smdistributed.dataparallel") == 0.97


def test_the_demo_judges_a_model_parallel_run_by_its_own_measure(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path, (0.5, 0.5), backend="muster")
    assert _checked(folder, "smdistributed.modelparallel") == _checked(folder, "smp") == 0.5
    with pytest.raises(Exception, match=r"below 0.95"):
        _checked(folder, "mpi")


def test_the_demo_takes_a_distribution_and_has_torchrun_s_by_default() -> None:
    demo = _module("demo")
    assert demo.parse([]) == "torch_distributed"
    assert demo.parse(["--distribution", "smdistributed.dataparallel"]) == (
        "smdistributed.dataparallel"
    )
    for name in demo.DISTRIBUTIONS:  # every one of them is a name of the SDK or of ours for one
        assert demo.to_hyperparameters(name), name


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--distribution", "smdistributed.dataparalel"], "mean 'smdistributed.dataparallel'?"),
        (["--distribution", "none"], "'none' is not one of torch_distributed, "),
        (["--distribution", "parameter_server"], "'parameter_server' is not one of "),
        (["--distribtion", "mpi"], "unknown option --distribtion, did you mean '--distribution'?"),
    ],
)  # fmt: skip
def test_the_demo_refuses_a_slip_before_anything_starts(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = _module("demo")
    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: pytest.fail("it started a job"))
    assert demo.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.splitlines()) == 1


def test_make_demo_passes_the_distribution_on() -> None:
    for given, behind in (("", ""), ("DISTRIBUTION=smddp", '--distribution "smddp"')):
        done = subprocess.run(
            ["make", "--no-print-directory", "--dry-run", "demo", *given.split()],
            cwd=DIGITS.parents[1], capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1].partition("demo.py")[2].strip() == behind
