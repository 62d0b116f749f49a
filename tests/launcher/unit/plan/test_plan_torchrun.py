"""The plan of a torchrun job."""

from __future__ import annotations

import os

import pytest

import muster
from muster.plan import plan
from muster.plan.launchplan import Direct, LaunchPlan, RankSlot, WorkEnds
from muster.plan.script import RANK_SHIM
from muster.types.distribution import Torchrun
from muster.types.errors import ConfigError
from muster.types.job import Settings
from muster.types.tools import Tools
from tests.launcher.support.jobs import launcher_of, make_cluster, make_facts, make_job, make_staged

TOOLS = Tools(("/env/bin/torchrun",), "/env/bin/neuron_parallel_compile")
SHIM_LINE = ("--no_python", "/usr/bin/python3", "-I", "-S", RANK_SHIM)
HETERO = {"gpu": (1, 3), "cpu": (2,), "data": (0,)}


def plan_on(
    current: int,
    hosts: int,
    processes: int | None = None,
    environ: dict[str, str] | None = None,
    tools: Tools = TOOLS,
    **facts: object,
) -> LaunchPlan:
    job = make_job(hosts, Torchrun(processes_per_host=processes), current)
    return plan(job, make_facts(hosts, **facts), make_staged(job, environ=environ), tools)


def launcher(made: LaunchPlan) -> tuple[str, ...]:
    return launcher_of(made).argv


def test_the_shim_that_torchrun_starts_is_the_file_of_this_package() -> None:
    folder = os.path.dirname(os.path.abspath(muster.__file__))
    assert os.path.join(folder, "run/child/rank_shim_main.py") == RANK_SHIM
    assert os.path.isfile(RANK_SHIM)


@pytest.mark.parametrize("current", [0, 1])
def test_every_host_runs_torchrun_over_our_shims_with_its_place_as_node_rank(current: int) -> None:
    made = plan_on(current, 2, processes=4)
    assert launcher(made) == (
        "/env/bin/torchrun",
        *("--nnodes", "2", "--nproc_per_node", "4"),
        *("--master_addr", "algo-1", "--master_port", "7777", "--node_rank", str(current)),
        *SHIM_LINE,
    )
    assert made.script.argv == ("/usr/bin/python3", "train.py")
    assert made.world_size == 8
    assert made.ranks_of(1) == tuple(RankSlot(4 + local, 1, local) for local in range(4))


def test_one_host_meets_on_loopback_and_names_its_port_so_that_two_jobs_do_not_collide() -> None:
    made = plan_on(0, 1, processes=2)
    assert launcher(made) == (
        "/env/bin/torchrun",
        *("--nnodes", "1", "--nproc_per_node", "2"),
        *("--master_addr", "127.0.0.1", "--master_port", "7777"),
        *SHIM_LINE,
    )
    assert made.ports == {"store": 7777}


def test_without_a_torchrun_program_its_module_runs_under_the_python_of_the_job() -> None:
    assert launcher(plan_on(0, 1, tools=Tools()))[:3] == (
        "/usr/bin/python3",
        "-m",
        "torch.distributed.run",
    )


@pytest.mark.parametrize(
    ("facts", "processes"),
    [({"gpus": 8}, 8), ({"neurons": 32}, 32), ({"gpus": 2, "neurons": 4}, 2), ({}, 1)],
)
def test_without_a_number_each_device_gets_a_rank_else_the_host_one(
    facts: dict[str, int], processes: int
) -> None:
    assert plan_on(0, 2, None, None, TOOLS, **facts).world_size == 2 * processes


@pytest.mark.promise("B28", "F46")
def test_more_processes_than_devices_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_on(0, 2, processes=8, gpus=4)
    (problem,) = caught.value.problems
    assert "processes_per_host 8 exceeds 4 devices on algo-1, algo-2" in problem.what
    assert "sagemaker_mpi_num_of_processes_per_host" in problem.where
    assert "at most 4" in problem.fix
    assert "MUSTER_OVERSUBSCRIBE=1" in problem.fix


@pytest.mark.promise("B28")
def test_sharing_devices_is_possible_when_asked_for_and_noted() -> None:
    job = make_job(1, Torchrun(processes_per_host=8), settings=Settings(oversubscribe=True))
    made = plan(job, make_facts(1, gpus=4), make_staged(job))
    assert made.world_size == 8
    assert "8 ranks share 4 devices here: MUSTER_OVERSUBSCRIBE is set" in made.notes


def hetero_plan(current: int, environ: dict[str, str] | None = None) -> LaunchPlan:
    """Groups gpu (algo-2, algo-4; 2 devices each) and cpu (algo-3) train, data (algo-1) helps."""
    cluster = make_cluster(4, current, HETERO)._replace(distribution=(1, 3, 2))
    job = make_job(distribution=Torchrun(), cluster=cluster)
    facts = [fact._replace(gpus=2 if fact.host_index in (1, 3) else 0) for fact in make_facts(4)]
    return plan(job, facts, make_staged(job, environ=environ), TOOLS)


def test_groups_may_hold_different_numbers_of_ranks_in_the_order_of_the_distribution() -> None:
    made = hetero_plan(2)
    assert made.ranks == (
        RankSlot(0, 1, 0),
        RankSlot(1, 1, 1),
        RankSlot(2, 3, 0),
        RankSlot(3, 3, 1),
        RankSlot(4, 2, 0),
        RankSlot(5, 0, 0),
    )
    assert (made.world_size, made.leader) == (5, 1)
    line = launcher(made)
    assert line[line.index("--nproc_per_node") + 1] == "1"
    assert line[line.index("--node_rank") + 1] == "2"
    assert line[line.index("--nnodes") + 1] == "3"
    assert made.notes[0] == "torchrun on 2 hosts x 2 + 1 host x 1 processes = world size 5"


def test_a_host_outside_the_distribution_runs_the_script_once_and_knows_the_leader() -> None:
    made = hetero_plan(0, {"RANK": "3", "WORLD_SIZE": "9"})
    assert made.starter == Direct()
    assert made.script.env["MASTER_ADDR"] == "algo-2"
    assert made.script.env["MASTER_PORT"] == "7777"
    assert not {"RANK", "WORLD_SIZE", "OMP_NUM_THREADS"} & set(made.script.env)
    assert any("outside the distribution" in note and "algo-1" in note for note in made.notes)


def test_torchrun_is_not_told_that_hosts_are_identical_when_they_are_not() -> None:
    name = "TORCH_ELASTIC_WORKER_IDENTICAL"
    made = hetero_plan(1, {name: "1"})
    assert name not in launcher_of(made).env
    assert any(name in note for note in made.notes)
    alike = plan_on(0, 2, environ={name: "1"})
    assert launcher_of(alike).env[name] == "1"


def test_variables_that_change_the_defaults_of_torchrun_reach_neither_it_nor_the_script() -> None:
    made = plan_on(0, 2, environ={"PET_NNODES": "5", "PET_RDZV_BACKEND": "c10d", "PETS": "2"})
    for environ in (launcher_of(made).env, made.script.env):
        assert [name for name in environ if name.startswith("PET")] == ["PETS"]
    assert sum("PET_" in note for note in made.notes) == 2


@pytest.mark.promise("B46")
def test_rank_variables_of_the_user_are_overridden_with_one_note_each() -> None:
    mine = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "LOCAL_RANK": "0"}
    made = plan_on(0, 2, environ={**mine, "NCCL_DEBUG": "INFO"})
    for environ in (launcher_of(made).env, made.script.env):
        assert not set(mine) & set(environ)
        assert environ["NCCL_DEBUG"] == "INFO"
    for name in mine:
        assert sum(note.startswith(f"{name}=") and "overridden" in note for note in made.notes) == 1


@pytest.mark.parametrize(
    ("cpus", "processes", "threads"),
    [(8, 4, "2"), (2, 4, "1"), (192, 8, "24"), (8, 1, None)],
)
def test_ranks_share_the_cpus_instead_of_having_one_thread_each(
    cpus: int, processes: int, threads: str | None
) -> None:
    made = plan_on(0, 1, processes, {}, TOOLS, cpus=cpus)
    assert made.script.env.get("OMP_NUM_THREADS") == threads
    assert launcher_of(made).env.get("OMP_NUM_THREADS") == threads
    assert any("OMP_NUM_THREADS" in note for note in made.notes) is (threads is not None)


def test_the_number_of_threads_that_the_user_chose_is_kept() -> None:
    made = plan_on(0, 1, 4, {"OMP_NUM_THREADS": "3"}, TOOLS, cpus=64)
    assert made.script.env["OMP_NUM_THREADS"] == "3"
    assert not any("OMP_NUM_THREADS" in note for note in made.notes)


def test_graphs_are_compiled_first_when_asked_for_on_neuron_cores() -> None:
    made = plan_on(0, 2, None, {"RUN_NEURON_PARALLEL_COMPILE": "1"}, TOOLS, neurons=2)
    assert launcher(made)[:2] == ("/env/bin/neuron_parallel_compile", "/env/bin/torchrun")
    assert "NEURON_*" in made.made_at_start
    assert made.ends.work_ends is WorkEnds.WITH_LAUNCHER


@pytest.mark.parametrize(("value", "neurons"), [("0", 2), ("1", 0)])
def test_graphs_are_not_compiled_without_the_variable_or_without_neuron_cores(
    value: str, neurons: int
) -> None:
    made = plan_on(0, 2, None, {"RUN_NEURON_PARALLEL_COMPILE": value}, TOOLS, neurons=neurons)
    assert launcher(made)[0] == "/env/bin/torchrun"
    assert "NEURON_*" not in made.made_at_start
    assert made.ends.work_ends is WorkEnds.WITH_RANKS


def test_a_missing_compile_tool_is_named() -> None:
    with pytest.raises(ConfigError, match="neuron_parallel_compile"):
        plan_on(0, 2, None, {"RUN_NEURON_PARALLEL_COMPILE": "1"}, Tools(), neurons=2)


def test_the_first_note_says_hosts_times_processes_is_the_world() -> None:
    assert plan_on(0, 2, 4).notes[0] == "torchrun on 2 hosts x 4 processes = world size 8"
    assert plan_on(0, 1, 1).notes[0] == "torchrun on 1 host x 1 processes = world size 1"


def test_smddp_beside_torchrun_tells_ranks_who_they_are_in_that_librarys_words() -> None:
    job = make_job(2, Torchrun(processes_per_host=2, data_parallel=True), 1)
    made = plan(job, make_facts(2), make_staged(job), TOOLS)
    assert made.per_rank[3] == {
        "SMDATAPARALLEL_RANK": "3", "SMDATAPARALLEL_LOCAL_RANK": "1", "SMDATAPARALLEL_SIZE": "4",
    }  # fmt: skip
    assert plan_on(1, 2, processes=2).per_rank == {}
