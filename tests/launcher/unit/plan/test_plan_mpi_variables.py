"""What scripts are told under mpirun: by us, by the user, never by a launcher around the job."""

from __future__ import annotations

import pytest

from muster.plan.launchplan import LaunchPlan
from muster.plan.openmpi.launch import plan_mpi
from muster.types.distribution import Mpi
from muster.types.job import Documents
from muster.types.tools import Tools
from tests.launcher.support.jobs import launcher_of, make_facts, make_job, make_staged

OPTIONS = ("mpi", "pytorchddp", "smdistributed.dataparallel", "smdistributed.modelparallel")
EACH_OPTION = pytest.mark.parametrize("name", OPTIONS)
DATA_PARALLEL = pytest.mark.parametrize("name", ["pytorchddp", "smdistributed.dataparallel"])


def made(
    option: Mpi,
    hosts: int = 2,
    current: int = 0,
    sent: dict[str, object] | None = None,
    **environ: str,
) -> LaunchPlan:
    job = make_job(hosts, option, current)._replace(documents=Documents({}, {}, {}, sent or {}))
    facts = make_facts(hosts, mpi="4.1.4")
    tools = Tools(mpirun="/bin/mpirun", mpi_daemon="/bin/orted")
    return plan_mpi(job, option, facts, make_staged(job, environ=environ), tools)


@pytest.mark.promise("B46")
@EACH_OPTION
def test_the_users_rank_variables_are_overridden_with_a_line_each(name: str) -> None:
    environ = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_ADDR": "there", "MASTER_PORT": "1"}
    plan = made(Mpi(name, 2), **environ)
    for variable, value in environ.items():
        (line,) = [note for note in plan.notes if note.startswith(f"{variable}={value} ")]
        assert f"is overridden: {name} sets it" in line
    assert plan.script.env["MASTER_ADDR"] == "algo-1"
    assert plan.script.env["MASTER_PORT"] == "7777"
    assert not {"RANK", "WORLD_SIZE"} & plan.script.env.keys()
    assert plan.per_rank[1]["RANK"] == "1"


@pytest.mark.promise("B46")
@EACH_OPTION
def test_the_users_own_fabric_variables_are_kept(name: str) -> None:
    environ = {"NCCL_SOCKET_IFNAME": "bond0", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "3"}
    plan = made(Mpi(name, 2), **environ)
    assert environ.items() <= plan.script.env.items()


@EACH_OPTION
def test_a_variable_that_the_options_ask_for_wins_over_ours_on_every_host(name: str) -> None:
    option = Mpi(name, 2, custom_options="-x NCCL_SOCKET_IFNAME=bond0 -x A=1 -x RANK=5")
    for current in (0, 1):
        plan = made(option, current=current)
        assert plan.script.env["NCCL_SOCKET_IFNAME"] == "bond0"
        assert plan.script.env["A"] == "1"
        assert "RANK" not in plan.script.env
        assert "-x RANK is left out: muster sets it for every rank" in plan.notes
        names = [one.name for one in plan.additions]
        assert len(names) == len(set(names))
    launcher = launcher_of(made(option))
    assert not {"-x", "A=1"} & set(launcher.argv)


@DATA_PARALLEL
def test_data_parallel_scripts_are_told_of_one_host_or_of_several(name: str) -> None:
    """As the vendor's toolkit does."""
    one = made(Mpi(name), hosts=1).script.env
    assert one["SMDATAPARALLEL_USE_SINGLENODE"] == "1"
    assert "SMDATAPARALLEL_SERVER_ADDR" not in one
    for current in (0, 1):
        two = made(Mpi(name), current=current).script.env
        assert two["SMDATAPARALLEL_USE_HOMOGENEOUS"] == "1"
        assert two["SMDATAPARALLEL_SERVER_ADDR"] == "algo-1"
        assert two["SMDATAPARALLEL_SERVER_PORT"] == "7592"
        assert "SMDATAPARALLEL_USE_SINGLENODE" not in two


@DATA_PARALLEL
def test_data_parallel_ranks_are_told_who_they_are_in_that_librarys_words(name: str) -> None:
    """Hugging Face's Trainer does int(os.getenv("SMDATAPARALLEL_LOCAL_RANK"))."""
    plan = made(Mpi(name, 2), current=1)
    assert {
        rank: {name: value for name, value in own.items() if name.startswith("SMDATAPARALLEL_")}
        for rank, own in plan.per_rank.items()
    } == {
        rank: {
            "SMDATAPARALLEL_RANK": str(rank), "SMDATAPARALLEL_LOCAL_RANK": str(rank - 2),
            "SMDATAPARALLEL_SIZE": "4",
        }
        for rank in (2, 3)
    }  # fmt: skip
    assert plan.per_rank[3]["LOCAL_RANK"] == "1"


@DATA_PARALLEL
def test_the_instance_type_is_the_one_that_the_sdk_sent(name: str) -> None:
    sent = made(Mpi(name), sent={"sagemaker_instance_type": "ml.p4d.24xlarge"}).script.env
    assert sent["SAGEMAKER_INSTANCE_TYPE"] == "ml.p4d.24xlarge"
    null = made(Mpi(name), sent={"sagemaker_instance_type": None}).script.env
    assert null["SAGEMAKER_INSTANCE_TYPE"] == "ml.c5.xlarge"


def test_other_options_are_told_nothing_of_data_parallelism() -> None:
    plan = made(Mpi())
    told = [*plan.script.env, *(name for own in plan.per_rank.values() for name in own)]
    assert not any(name.startswith("SMDATAPARALLEL") for name in told)
