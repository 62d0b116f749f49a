"""What is wrong with a request for mpirun is told while it is read, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.contract.request.read import read_job
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError, Problem
from muster.types.job import Job
from tests.support.mltree import ONE_HOST, PROGRAM, TWO_HOSTS, write_tree

MPI = "sagemaker_mpi_custom_mpi_options"
SMDDP = "sagemaker_distributed_dataparallel_custom_mpi_options"
ON = {"sagemaker_mpi_enabled": "true"}


def read(tmp_path: Path, sent: dict[str, str], hosts: bool = False, **environ: str) -> Job:
    given = write_tree(tmp_path, {**PROGRAM, **sent}, TWO_HOSTS if hosts else ONE_HOST)
    return read_job({**given, **environ})


def problems(tmp_path: Path, sent: dict[str, str], **environ: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, sent, **environ)
    assert caught.value.exit_code == 100
    return caught.value.problems


@pytest.mark.promise("B31")
@pytest.mark.parametrize(
    ("key", "enabled"),
    [
        (MPI, "sagemaker_mpi_enabled"),
        (SMDDP, "sagemaker_distributed_dataparallel_enabled"),
        (SMDDP, "sagemaker_pytorch_ddp_enabled"),
    ],
)
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("-x A='1", "cannot be split as a shell would: No closing quotation"),
        ("--hostfile /tmp/h", "--hostfile is not allowed: the hosts, and how many ranks each"),
        ("--mca plm_rsh_agent /x", "--mca 'plm_rsh_agent' is not allowed: it changes who"),
    ],
)
def test_options_are_read_before_anything_starts(
    tmp_path: Path, key: str, enabled: str, options: str, what: str
) -> None:
    (one,) = problems(tmp_path, {enabled: "true", key: options})
    assert one.where == key
    assert one.what.startswith(what)
    assert one.fix


@pytest.mark.promise("B31")
@pytest.mark.promise("B27")
def test_they_are_told_together_with_everything_else(tmp_path: Path) -> None:
    sent = {
        **ON,
        MPI: '"-np 3 --mca plm_rsh_agent /bin/x"',
        "sagemaker_mpi_num_of_processes_per_host": "0",
        "mp_parameters": '{"partitions": 0}',
        "sagemaker_program": "../x",
    }
    found = [one.where for one in problems(tmp_path, sent)]
    assert found.count(MPI) == 2
    assert {"sagemaker_mpi_num_of_processes_per_host", "mp_parameters.partitions"} <= set(found)
    assert len(found) == 5


def test_options_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    off = {"sagemaker_mpi_enabled": "false", MPI: "--hostfile x"}
    assert read(tmp_path, off).warnings == ()
    other = {"sagemaker_torch_distributed_enabled": "true", SMDDP: "-np 3"}
    assert read(tmp_path, other).warnings == ()


def test_the_variable_that_let_unknown_options_pass_is_answered_with_one_line(
    tmp_path: Path,
) -> None:
    sent = {**ON, MPI: '"--timeout 30"'}
    job = read(tmp_path, sent, MUSTER_MPI_RAW_OPTIONS="1")
    assert job.distribution == Mpi("mpi", custom_options="--timeout 30")
    (line,) = job.warnings
    assert line.startswith("MUSTER_MPI_RAW_OPTIONS is not needed any more")


def test_ranks_in_turns_are_refused_only_where_there_are_several_hosts(tmp_path: Path) -> None:
    sent = {**ON, MPI: '"--map-by node"'}
    assert read(tmp_path / "one", sent).distribution == Mpi(custom_options="--map-by node")
    with pytest.raises(ConfigError, match="numbered host after host"):
        read(tmp_path / "two", sent, hosts=True)


@pytest.mark.promise("B25")
@pytest.mark.parametrize(
    "other",
    [
        "sagemaker_torch_distributed_enabled",
        "sagemaker_parameter_server_enabled",
        "sagemaker_distributed_dataparallel_enabled",
        "sagemaker_pytorch_ddp_enabled",
        "sagemaker_multi_worker_mirrored_strategy_enabled",
    ],
)
def test_mpi_beside_another_option_is_a_conflict_that_can_be_allowed(
    tmp_path: Path, other: str
) -> None:
    both = {**ON, other: "true"}
    (one,) = problems(tmp_path / "one", both)
    assert one.where == "conflicting distributions"
    assert one.what.startswith("mpi and ")
    assert "MUSTER_ALLOW_CONFLICTS=1 to use mpi" in one.fix
    job = read(tmp_path / "two", both, MUSTER_ALLOW_CONFLICTS="1")
    assert job.distribution == Mpi()
    assert len(job.warnings) == 1


@pytest.mark.parametrize("text", ["x" * (16 << 20), "'" * (1 << 20)])
def test_huge_options_are_refused_at_once(tmp_path: Path, text: str) -> None:
    (one,) = problems(tmp_path, {**ON, MPI: text[: 15 << 20]})
    assert "characters, at most 32,768 are allowed" in one.what
