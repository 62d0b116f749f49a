"""The wheel of legacy names: names only, and scripts that use them run unchanged."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_collectives.runtime.environment import for_data_parallel, for_torch
from tests.collectives.support import ranks
from tests.support.mpi import mpirun_alone
from tests.support.venvs import CHECKOUT, build_wheel

COMPAT = CHECKOUT / "toolkit" / "compat"
SOURCES = (COMPAT / "src", CHECKOUT / "toolkit" / "parallel" / "src")
HERE = Path(__file__).parent
DATA_PARALLEL = "smdistributed/dataparallel"
PATHS = os.pathsep.join(map(str, SOURCES))
OPEN_MPI = [
    {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    for rank in range(2)
]  # fmt: skip
LEGACY = {
    "SMDATAPARALLEL_OPTIMIZE_SDP": "true", "SMDATAPARALLEL_USE_SINGLENODE": "1",
    "SMDATAPARALLEL_USE_HOMOGENEOUS": "1", "SMDATAPARALLEL_SERVER_ADDR": "algo-1",
    "SMDATAPARALLEL_SERVER_PORT": "7592", "SAGEMAKER_INSTANCE_TYPE": "ml.p4d.24xlarge",
}  # fmt: skip
# what the launcher of mpirun's ranks leaves unset
UNSET = {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": ""}


@pytest.mark.dev
def test_the_wheel_has_the_names_and_leaves_the_namespace_open(tmp_path: Path) -> None:
    version = _version()
    with zipfile.ZipFile(build_wheel(COMPAT, tmp_path / "wheel")) as wheel:
        files = set(wheel.namelist())
        metadata = wheel.read(f"muster_compat-{version}.dist-info/METADATA").decode()
        scripts = wheel.read(f"muster_compat-{version}.dist-info/entry_points.txt").decode()
    assert "smdistributed/__init__.py" not in files
    for module in ("torch/torch_smddp", "torch/distributed", "torch/parallel/distributed"):
        assert f"{DATA_PARALLEL}/{module}.py" in files
    assert f"{DATA_PARALLEL}/tensorflow/__init__.py" in files
    for module in ("__init__", "torch/__init__", "torch/nn/huggingface/gpt2", "test/torch/utils"):
        assert f"smdistributed/modelparallel/{module}.py" in files
    assert f"Requires-Dist: muster-parallel=={version}" in metadata
    for script in ("smddprun", "smddpmprun"):
        assert f"{script} = muster_collectives.wrappers:{script}" in scripts


def test_the_modules_hold_names_and_no_logic() -> None:
    for module in (COMPAT / "src" / "smdistributed").rglob("*.py"):
        for statement in ast.parse(module.read_text()).body:
            says = ast.unparse(statement)
            is_name = isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign | ast.Raise)
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            assert is_name or is_text or says == "register()", f"{module}: {says}"


def test_tensorflow_s_names_are_those_of_the_library() -> None:
    """Both packages name them; TensorFlow need not be there to compare."""

    def names(package: Path) -> set[str]:
        for statement in ast.parse((package / "__init__.py").read_text()).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                return set(ast.literal_eval(statement.value))
        raise AssertionError(f"{package} has no __all__")

    ours = names(SOURCES[1] / "muster_collectives" / "tensorflow")
    theirs = names(SOURCES[0] / "smdistributed" / "dataparallel" / "tensorflow")
    assert ours - theirs == {"is_initialized"}  # the legacy API had none
    assert theirs <= ours


@pytest.mark.torch
def test_a_script_of_the_legacy_torch_api_runs_unchanged() -> None:
    environ = {**LEGACY, **UNSET, "PYTHONPATH": PATHS}
    script = str(HERE / "compat_worker.py")
    ended = ranks.run(2, [script], env=environ, each_env=OPEN_MPI, timeout_s=100)
    assert [each.code for each in ended] == [0, 0], ranks.shown(ended)
    assert all("done" in each.output for each in ended)
    said = [each.output.count("SMDATAPARALLEL_USE_SINGLENODE") for each in ended]
    assert sum(said) >= 1 and max(said) == 1, ranks.shown(ended)  # once, not at every call


@pytest.mark.torch
def test_ranks_are_found_where_torch_does_not_look() -> None:
    from muster_collectives.torch.legacy import start_options

    complete = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert start_options(complete) == {}
    assert start_options({}) == {
        "init_method": "tcp://127.0.0.1:29500", "rank": 0, "world_size": 1,
    }  # fmt: skip
    found = start_options({**OPEN_MPI[1], "MASTER_ADDR": "fe80::1", "MASTER_PORT": "77"})
    assert found == {"init_method": "tcp://[fe80::1]:77", "rank": 1, "world_size": 2}


@pytest.mark.torch
@pytest.mark.dev
@pytest.mark.parametrize("version", ["5.0.11", "4.1.4"])
def test_the_current_api_starts_under_mpirun_alone_behind_smddprun(version: str) -> None:
    """init_process_group("smddp") reads torchrun's variables, and mpirun sets none of them."""
    program = (
        "import os, torch, torch.distributed as dist\n"
        "import smdistributed.dataparallel.torch.torch_smddp\n"
        "dist.init_process_group('smddp')\n"
        "value = torch.full((1000,), dist.get_rank() + 1.0)\n"
        "dist.all_reduce(value)\n"
        "said = [dist.get_backend(), dist.get_world_size(), value[0].item()]\n"
        "said += [os.environ['LOCAL_RANK'], os.environ['SMDATAPARALLEL_LOCAL_RANK']]\n"
        "os.write(1, f'{said}\\n'.encode())\n"
        "dist.destroy_process_group()\n"
    )
    wrapper = "import sys; from muster_collectives.wrappers import smddprun; sys.exit(smddprun())"
    done = mpirun_alone(
        version, sys.executable, "-c", wrapper, sys.executable, "-c", program,
        environ={"PYTHONPATH": PATHS}, limit_s=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"['smddp', 2, 3.0, '{rank}', '{rank}']" for rank in (0, 1)
    ]


def test_the_wrappers_fill_in_only_what_mpirun_alone_leaves_unset() -> None:
    one = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    job = {"PMIX_NAMESPACE": "prterun-host-77@1"}
    filled = for_torch({**OPEN_MPI[1], **job})
    port = filled.pop("MASTER_PORT")
    assert filled == {**one, "MASTER_ADDR": "127.0.0.1"}
    assert for_torch({**OPEN_MPI[0], **job})["MASTER_PORT"] == port  # all ranks name the same
    assert for_torch({**OPEN_MPI[1], "MASTER_ADDR": "h", "MASTER_PORT": "1"}) == one
    assert for_torch({**OPEN_MPI[1], **one, "MASTER_ADDR": "h", "MASTER_PORT": "1"}) == {}
    assert for_torch({"PATH": "/bin", **job}) == {}  # not a rank: alone, or torchrun's
    several = {**OPEN_MPI[1], "OMPI_COMM_WORLD_SIZE": "4"}
    assert "MASTER_ADDR" not in for_torch(several)  # on several hosts nobody can know it


def test_the_wrappers_tell_each_rank_who_it_is_in_the_librarys_words() -> None:
    torchrun = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    assert for_data_parallel(torchrun) == {
        "SMDATAPARALLEL_RANK": "3", "SMDATAPARALLEL_LOCAL_RANK": "1", "SMDATAPARALLEL_SIZE": "4",
    }  # fmt: skip
    own = {**torchrun, "SMDATAPARALLEL_LOCAL_RANK": "0"}
    assert "SMDATAPARALLEL_LOCAL_RANK" not in for_data_parallel(own)
    assert for_data_parallel({"PATH": "/bin"}) == {}


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    yield path


@pytest.mark.parametrize(
    ("wrapper", "options"),
    [("smddprun", []), ("smddpmprun", ["-i", "ml.p4d.24xlarge", "--allow-bypass"])],
)
def test_the_wrappers_run_their_arguments_as_they_are(
    program: Path, wrapper: str, options: list[str]
) -> None:
    code = f"import sys; from muster_collectives.wrappers import {wrapper}; sys.exit({wrapper}())"
    done = subprocess.run(
        [sys.executable, "-c", code, *options, str(program), "--epochs", "two words", "-i", "3"],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "--epochs|two words|-i|3|"), done.stderr


def _version() -> str:
    names: dict[str, str] = {}
    exec((CHECKOUT / "toolkit" / "version.py").read_text(), names)
    return names["__version__"]
