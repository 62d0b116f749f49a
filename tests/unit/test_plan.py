"""One arm per option, and the tools that planning is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.plan import plan
from muster.plan.tools import Tools, find_tools
from muster.spec.distribution import Distribution, Mpi, ParameterServer
from muster.spec.errors import ConfigError
from tests.support.jobs import make_facts, make_job, make_staged


@pytest.mark.promise("B26")
@pytest.mark.parametrize(
    "distribution",
    [Mpi(), Mpi(option="pytorchddp"), Mpi("smdistributed.dataparallel"), ParameterServer()],
)
def test_an_option_that_is_not_served_names_itself_and_a_cure(distribution: Distribution) -> None:
    job = make_job(2, distribution)
    with pytest.raises(ConfigError) as caught:
        plan(job, make_facts(2), make_staged(job))
    assert distribution.option in caught.value.message
    assert "torch_distributed" in caught.value.fix
    assert caught.value.exit_code == 100


def test_the_error_points_at_what_asked_for_the_option() -> None:
    job = make_job(1, Mpi(), origins={"distribution": "hyperparameter sagemaker_mpi_enabled"})
    with pytest.raises(ConfigError) as caught:
        plan(job, make_facts(1), make_staged(job))
    assert caught.value.problems[0].where == "hyperparameter sagemaker_mpi_enabled"


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
