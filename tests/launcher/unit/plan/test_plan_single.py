"""The plan of a job without a distribution."""

from __future__ import annotations

import pytest

from muster.plan import plan
from muster.plan.launchplan import Direct, LaunchPlan, RankSlot
from muster.types.errors import InternalError
from muster.types.job import Settings
from tests.launcher.support.jobs import make_cluster, make_facts, make_job, make_staged


def plan_on(current: int, hosts: int, environ: dict[str, str] | None = None) -> LaunchPlan:
    job = make_job(hosts, current=current, arguments=("--lr", "0.1"))
    return plan(job, make_facts(hosts), make_staged(job, environ=environ))


def test_one_host_runs_the_script_once_under_a_shim_of_the_supervisor() -> None:
    made = plan_on(0, 1)
    assert made.starter == Direct()
    assert made.script.argv == ("/usr/bin/python3", "train.py", "--lr", "0.1")
    assert made.script.cwd == "/opt/ml/code"
    assert made.ranks == (RankSlot(0, 0, 0),)
    assert (made.world_size, made.ports, made.made_at_start) == (
        1,
        {},
        ("MUSTER_RUN_ID", "RUN_FACTS"),
    )


def test_one_host_gets_no_rank_or_network_variable() -> None:
    made = plan_on(0, 1, {"PATH": "/bin"})
    assert made.script.env == {"PATH": "/bin", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


@pytest.mark.promise("B46")
def test_one_host_leaves_rank_variables_of_the_user_alone() -> None:
    mine = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    mine |= {"PYTHONUNBUFFERED": "0", "PYTHONFAULTHANDLER": ""}
    made = plan_on(0, 1, mine)
    assert made.script.env == mine
    assert made.notes == ()


@pytest.mark.parametrize("current", [0, 1, 2])
def test_each_of_several_hosts_runs_the_script_once_and_knows_the_leader(current: int) -> None:
    made = plan_on(current, 3)
    assert made.starter == Direct()
    assert made.world_size == 3
    assert made.ranks_of(current) == (RankSlot(current, current, 0),)
    assert made.script.env == {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
    }
    assert made.ports == {"control": 7776, "store": 7777}


def test_several_hosts_are_told_how_to_switch_a_distribution_on() -> None:
    (first,) = plan_on(0, 2).warnings
    assert "no distribution was requested: each of 2 hosts" in first
    assert 'distribution={"torch_distributed": {"enabled": True}}' in first
    assert "sagemaker_torch_distributed_enabled=true" in first
    job = make_job(2, settings=Settings(isolation="netns"))
    (first,) = plan(job, make_facts(2), make_staged(job)).warnings
    assert first.endswith(": --distribution torch_distributed")
    assert plan_on(0, 1).warnings == ()


@pytest.mark.promise("B46")
def test_on_several_hosts_the_leader_of_the_user_is_overridden_with_a_note_and_ranks_are_not() -> (
    None
):
    made = plan_on(1, 2, {"MASTER_ADDR": "algo-9", "MASTER_PORT": "7777", "RANK": "5"})
    assert made.script.env["MASTER_ADDR"] == "algo-1"
    assert made.script.env["RANK"] == "5"
    about = [note for note in made.notes if "overridden" in note]
    assert about == [
        "MASTER_ADDR=algo-9 of the environment is overridden: a job of several hosts sets it"
    ]


def test_every_addition_is_a_note_with_its_reason() -> None:
    made = plan_on(0, 2)
    assert len(made.additions) == 7
    assert {str(item) for item in made.additions} <= set(made.notes)
    assert all(item.reason for item in made.additions)


def test_the_leader_is_named_by_address_when_one_host_does_not_resolve_its_name() -> None:
    job = make_job(3)
    facts = make_facts(3)
    facts = (*facts[:2], facts[2]._replace(resolves_leader=False))
    made = plan(job, facts, make_staged(job))
    assert made.master_addr == made.script.env["MASTER_ADDR"] == "10.0.0.1"
    reason = next(item.reason for item in made.additions if item.name == "MASTER_ADDR")
    assert "algo-3" in reason


def test_each_host_gets_its_own_interface() -> None:
    facts = make_facts(2)
    facts = (facts[0], facts[1]._replace(interface="ens5"))
    for current, interface in enumerate(("eth0", "ens5")):
        job = make_job(2, current=current)
        made = plan(job, facts, make_staged(job))
        assert made.script.env["GLOO_SOCKET_IFNAME"] == interface


def test_the_ports_are_those_of_the_settings() -> None:
    job = make_job(2, settings=Settings(control_port=1111, store_port=2222))
    made = plan(job, make_facts(2), make_staged(job))
    assert made.ports == {"control": 1111, "store": 2222}
    assert made.script.env["MASTER_PORT"] == "2222"


def test_hosts_outside_the_distribution_are_numbered_behind_the_world() -> None:
    cluster = make_cluster(3, groups={"trainers": (1, 2), "helpers": (0,)})
    job = make_job(cluster=cluster)
    made = plan(job, make_facts(3), make_staged(job))
    assert made.world_size == 2
    assert made.leader == 1
    assert made.ranks == (RankSlot(0, 1, 0), RankSlot(1, 2, 0), RankSlot(2, 0, 0))
    assert made.script.env["MASTER_ADDR"] == "algo-2"


def test_the_order_of_the_facts_does_not_matter() -> None:
    job = make_job(3, current=2)
    staged = make_staged(job)
    assert plan(job, make_facts(3), staged) == plan(job, make_facts(3)[::-1], staged)


@pytest.mark.parametrize("facts", [make_facts(1), make_facts(3), (make_facts(1)[0],) * 2])
def test_facts_that_do_not_fit_the_cluster_are_a_defect_of_ours(facts: tuple) -> None:  # type: ignore[type-arg]
    job = make_job(2)
    with pytest.raises(InternalError, match="2 hosts"):
        plan(job, facts, make_staged(job))


@pytest.mark.parametrize(
    ("kind", "name", "argv", "is_python"),
    [
        ("script", "src/train.py", ("/usr/bin/python3", "src/train.py", "-x"), True),
        ("module", "pkg.train", ("/usr/bin/python3", "-m", "pkg.train", "-x"), True),
        ("command", "run.sh", ("/bin/sh", "run.sh", "-x"), False),
        ("command", "bin/run", ("./bin/run", "-x"), False),
    ],
)
def test_each_kind_of_program_has_its_command(
    kind: str, name: str, argv: tuple[str, ...], is_python: bool
) -> None:
    job = make_job(arguments=("-x",))
    made = plan(job, make_facts(1), make_staged(job, kind=kind, name=name))
    assert made.script.argv == argv
    assert made.script_is_python is is_python


def test_the_secret_of_the_join_never_reaches_a_script() -> None:
    assert "MUSTER_JOB_SECRET" not in plan_on(0, 1, {"MUSTER_JOB_SECRET": "x" * 16}).script.env
