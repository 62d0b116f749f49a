"""How many ranks each host holds under mpirun: what was asked for, what is there, who is out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from muster.plan.degrees import degrees_text
from muster.plan.launchplan import Direct, LaunchPlan
from muster.plan.openmpi.launch import plan_mpi
from muster.plan.slots import mpi_processes, processes_per_host
from muster.types.distribution import MODEL_PARALLEL, Mpi, Torchrun
from muster.types.errors import ConfigError
from muster.types.job import Documents, Job, Settings
from muster.types.machine import HostFacts
from muster.types.tools import Tools
from tests.launcher.support.jobs import (
    daemon_hosts_of,
    launcher_of,
    make_cluster,
    make_facts,
    make_job,
    make_staged,
)

TOOLS = Tools(mpirun="/bin/mpirun", mpi_daemon="/bin/orted")
OPTIONS = ("mpi", "pytorchddp", "smdistributed.dataparallel", MODEL_PARALLEL)
EACH_OPTION = pytest.mark.parametrize("name", OPTIONS)


def facts(*gpus: int) -> tuple[HostFacts, ...]:
    """One host for each number of GPUs."""
    machines = make_facts(len(gpus), mpi="4.1.4")
    return tuple(fact._replace(gpus=count) for fact, count in zip(machines, gpus, strict=True))


def job_of(
    hosts: int,
    option: Mpi,
    groups: Mapping[str, Sequence[int]] | None = None,
    current: int = 0,
    **settings: bool,
) -> Job:
    cluster = make_cluster(hosts, current, groups)
    return make_job(hosts, option, cluster=cluster, settings=Settings(**settings))  # type: ignore[arg-type]


def counts(machines: tuple[HostFacts, ...], option: Mpi, **settings: bool) -> list[int]:
    job = job_of(len(machines), option, **settings)
    return list(mpi_processes(job, machines, option).values())


def refused(machines: tuple[HostFacts, ...], option: Mpi) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        counts(machines, option)
    assert caught.value.exit_code == 100
    return caught.value


def plan_of(job: Job, machines: tuple[HostFacts, ...]) -> LaunchPlan:
    assert isinstance(job.distribution, Mpi)
    return plan_mpi(job, job.distribution, machines, make_staged(job), TOOLS)


@EACH_OPTION
@pytest.mark.parametrize(
    ("machines", "each", "total", "expected"),
    [
        (facts(0), None, None, [1]),
        (facts(0, 0), 3, None, [3, 3]),
        (facts(4), None, None, [4]),
        (facts(8, 8), None, None, [8, 8]),
        (facts(8, 8), 2, None, [2, 2]),
        (facts(8, 8), None, 4, [2, 2]),
        (facts(8, 8), 8, 4, [2, 2]),
        (facts(8, 8), 8, 16, [8, 8]),
        (facts(0, 0, 0), None, 6, [2, 2, 2]),
    ],
)
def test_ranks_per_host_are_asked_for_or_one_for_each_device(
    machines: tuple[HostFacts, ...],
    each: int | None,
    total: int | None,
    expected: list[int],
    name: str,
) -> None:
    assert counts(machines, Mpi(name, each, total)) == expected


@pytest.mark.promise("B28")
@EACH_OPTION
@pytest.mark.parametrize(("each", "total"), [(16, None), (None, 32)])
def test_more_ranks_than_devices_are_refused_with_both_numbers(
    each: int | None, total: int | None, name: str
) -> None:
    error = refused(facts(8, 8), Mpi(name, each, total))
    assert "processes_per_host 16 exceeds 8 devices on algo-1, algo-2" in error.message
    assert "at most 8" in error.fix
    assert "MUSTER_OVERSUBSCRIBE=1" in error.fix


def test_devices_may_be_shared_when_the_user_says_so() -> None:
    assert counts(facts(8, 8), Mpi("mpi", 16), oversubscribe=True) == [16, 16]


@pytest.mark.promise("B29")
@EACH_OPTION
@pytest.mark.parametrize(
    ("hosts", "each", "total", "text"),
    [
        (2, None, 3, "3 processes cannot be shared by 2 hosts"),
        (3, None, 2, "2 processes cannot be shared by 3 hosts"),
        (2, 2, 6, "6 processes exceed 2 hosts x 2 processes_per_host = 4"),
        (1, 1, 2, "2 processes exceed 1 hosts x 1 processes_per_host = 1"),
    ],
)
def test_a_total_that_the_hosts_cannot_share_is_refused_with_the_rule(
    hosts: int, each: int | None, total: int, text: str, name: str
) -> None:
    error = refused(facts(*[0] * hosts), Mpi(name, each, total))
    assert text in error.message
    assert error.problems[0].where == "sagemaker_mpi_num_processes"
    assert error.fix


@pytest.mark.promise("B30")
@EACH_OPTION
def test_unequal_devices_in_a_group_are_refused_with_names_and_counts(name: str) -> None:
    error = refused(facts(8, 4), Mpi(name))
    assert "algo-1 has 8 devices but algo-2 has 4" in error.message
    assert "to 4" in error.fix
    assert counts(facts(8, 4), Mpi(name, 4)) == [4, 4]


@pytest.mark.promise("B30")
def test_groups_may_hold_different_numbers_of_ranks_and_hosts_of_one_may_not() -> None:
    two = make_cluster(4)
    hosts = tuple(
        host._replace(group="big" if host.host_index < 2 else "small") for host in two.hosts
    )
    option = Mpi()
    job = make_job(4, option, cluster=two._replace(hosts=hosts))
    assert list(mpi_processes(job, facts(8, 8, 2, 2), option).values()) == [8, 8, 2, 2]
    with pytest.raises(ConfigError, match=r"group small: algo-3 has 2 .* algo-4 has 1"):
        mpi_processes(job, facts(8, 8, 2, 1), option)


@EACH_OPTION
def test_a_host_outside_the_distribution_runs_the_script_once_and_that_is_said(name: str) -> None:
    groups = {"gpu": [1, 2], "cpu": [0]}
    machines = facts(0, 2, 2)
    plans = [plan_of(job_of(3, Mpi(name), groups, place), machines) for place in range(3)]
    line = "outside the distribution, running the script once each: algo-1"
    assert all(line in made.notes for made in plans)
    helper, leader, member = plans
    assert (helper.starter, helper.per_rank) == (Direct(), {})
    assert [slot.rank for slot in helper.ranks_of(0)] == [4]
    assert helper.world_size == 4
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & helper.script.env.keys()
    assert "10.0.0.2:2,10.0.0.3:2" in launcher_of(leader).argv
    assert not any("10.0.0.1" in word for word in launcher_of(leader).argv)
    assert daemon_hosts_of(leader) == {"10.0.0.3": 2}
    assert sorted(member.per_rank) == [2, 3]
    assert len({made.digest for made in plans}) == 1


def test_a_helper_without_open_mpi_does_not_stop_the_job() -> None:
    machines = facts(0, 0)
    machines = (machines[0]._replace(mpi=""), machines[1])
    made = plan_of(job_of(2, Mpi(), {"gpu": [1], "cpu": [0]}), machines)
    assert made.world_size == 1


@pytest.mark.promise("B30")
def test_unequal_devices_outside_the_distribution_do_not_matter() -> None:
    job = job_of(3, Mpi(), {"gpu": [2], "cpu": [0, 1]})
    assert mpi_processes(job, facts(1, 4, 8), Mpi()) == {2: 8}


def degrees(option: Mpi | Torchrun, hosts: int, **parameters: object) -> Job:
    documents = Documents({}, {}, {"mp_parameters": parameters}, {})
    return make_job(hosts, option)._replace(documents=documents)


@pytest.mark.promise("B32")
@pytest.mark.parametrize(
    ("parameters", "product"),
    [
        ({"partitions": 3}, "pipeline 3 x tensor 1 = 3"),
        ({"pipeline_parallel_degree": 2, "tensor_parallel_degree": 4}, "pipeline 2 x tensor 4 = 8"),
        ({"tensor_parallel_degree": 16}, "pipeline 1 x tensor 16 = 16"),
    ],
)
def test_degrees_that_do_not_divide_the_world_are_refused(
    parameters: dict[str, object], product: str
) -> None:
    option = Mpi(MODEL_PARALLEL, 2)
    with pytest.raises(ConfigError) as caught:
        mpi_processes(degrees(option, 2, **parameters), facts(0, 0), option)
    assert caught.value.message == f"mp_parameters: {product} does not divide the world size 4"


@pytest.mark.promise("B32")
@pytest.mark.parametrize(
    ("parameters", "texts"),
    [
        (
            {"partitions": 2},
            ["the world size 8 is more than pipeline 2 x tensor 1 = 2, and ddp is not true"],
        ),
        (
            {"microbatches": 2, "ddp": False, "sharded_data_parallel_degree": 3},
            [
                "the world size 8 is more than pipeline 1 x tensor 1 = 1, and ddp is not true",
                "sharded_data_parallel_degree 3 does not divide the data-parallel size 8",
            ],
        ),
        (
            {"partitions": 2, "ddp": True, "sharded_data_parallel_degree": 8},
            ["sharded_data_parallel_degree 8 does not divide the data-parallel size 4"],
        ),
        (
            {"tensor_parallel_degree": 4, "hybrid_shard_degree": 4},
            ["hybrid_shard_degree 4 does not divide the data-parallel size 2"],
        ),
    ],
)
def test_ranks_that_cannot_be_cut_into_groups_are_refused(
    parameters: dict[str, object], texts: list[str]
) -> None:
    option = Torchrun(MODEL_PARALLEL, 4)
    with pytest.raises(ConfigError) as caught:
        processes_per_host(degrees(option, 2, **parameters), facts(0, 0), 4)
    assert [problem.what for problem in caught.value.problems] == texts


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"partitions": 4}, "pipeline 4 x tensor 1 x data 1"),
        ({"partitions": 2, "ddp": True}, "pipeline 2 x tensor 1 x data 2"),
        ({"tensor_parallel_degree": 4}, "pipeline 1 x tensor 4 x data 1"),
        # nothing says that these are not for version 2, which has no ddp
        ({"tensor_parallel_degree": 2}, "pipeline 1 x tensor 2 x data 2"),
        ({"hybrid_shard_degree": 0, "random_seed": 1}, "pipeline 1 x tensor 1 x data 4"),
        ({"hybrid_shard_degree": 2}, "pipeline 1 x tensor 1 x data 4 (sharded 2)"),
        (
            {"ddp": True, "sharded_data_parallel_degree": 4},
            "pipeline 1 x tensor 1 x data 4 (sharded 4)",
        ),
    ],
)
def test_degrees_that_divide_the_world_are_planned_and_shown(
    parameters: dict[str, object], text: str
) -> None:
    option = Mpi(MODEL_PARALLEL, 2)
    job = degrees(option, 2, **parameters)
    assert mpi_processes(job, facts(0, 0), option) == {0: 2, 1: 2}
    assert degrees_text(job, 4) == text


def test_parameters_of_a_job_of_another_option_are_its_own_affair() -> None:
    plain = degrees(Mpi("mpi", 2), 2, partitions=3)
    assert mpi_processes(plain, facts(0, 0), Mpi("mpi", 2)) == {0: 2, 1: 2}
    assert degrees_text(plain, 4) == ""
