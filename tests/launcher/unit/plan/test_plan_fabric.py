"""Interface and collective-library variables."""

from __future__ import annotations

import pytest

from muster.plan.fabric import plan_fabric
from muster.types.machine import HostFacts
from tests.launcher.support.jobs import make_facts, make_job

SOCKETS = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}


def names(facts: tuple[HostFacts, ...], environ: dict[str, str] | None = None) -> set[str]:
    links = plan_fabric(make_job(len(facts)), facts, environ or {})
    return {item.name for item in links.additions}


def notes(facts: tuple[HostFacts, ...], environ: dict[str, str] | None = None) -> tuple[str, ...]:
    return plan_fabric(make_job(len(facts)), facts, environ or {}).notes


def test_one_host_needs_nothing() -> None:
    assert names(make_facts(1, efa=True, gpus=8)) == set()


def test_several_hosts_use_the_interface_of_the_job() -> None:
    assert names(make_facts(2)) == SOCKETS


def test_an_unknown_interface_sets_nothing() -> None:
    assert names(make_facts(2, interface="")) == set()


@pytest.mark.promise("B46")
def test_what_the_user_set_is_kept_and_said() -> None:
    facts = make_facts(2)
    mine = {"NCCL_SOCKET_IFNAME": "bond0"}
    assert names(facts, mine) == SOCKETS - set(mine)
    assert notes(facts, mine) == ("NCCL_SOCKET_IFNAME=bond0 of the environment is kept",)


def test_efa_on_gpu_hosts_needs_no_variable_but_a_note() -> None:
    facts = make_facts(2, efa=True, gpus=8)
    assert names(facts) == SOCKETS
    assert any("EFA found on all hosts" in note for note in notes(facts))


def test_efa_on_some_hosts_names_those_without() -> None:
    facts = make_facts(2, efa=True, gpus=8)
    facts = (facts[0], facts[1]._replace(efa=False))
    assert any("EFA is missing on algo-2" in note for note in notes(facts))


def test_neuron_hosts_reach_one_another_by_efa() -> None:
    facts = make_facts(2, efa=True, neurons=32)
    links = plan_fabric(make_job(2), facts, {})
    made = {item.name: item.value for item in links.additions}
    assert made["FI_PROVIDER"] == "efa"
    assert made["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert names((facts[0], facts[1]._replace(efa=False))) == SOCKETS


@pytest.mark.parametrize(
    ("environ", "efa", "said"),
    [
        ({"FI_PROVIDER": "efa"}, False, "no EFA device"),
        ({"FI_PROVIDER": "efa"}, True, ""),
        ({"FI_PROVIDER": "tcp"}, False, ""),
        ({"RDMAV_FORK_SAFE": "1"}, True, "newer kernels"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, False, "loopback"),
        ({"NCCL_SOCKET_IFNAME": "^docker0,lo"}, False, ""),
    ],
)
def test_values_known_to_hurt_are_kept_and_said(
    environ: dict[str, str], efa: bool, said: str
) -> None:
    about = [
        note for note in notes(make_facts(2, efa=efa), environ) if "of the environment:" in note
    ]
    assert len(about) == bool(said)
    assert all(said in note for note in about)


def test_no_variable_that_the_incumbent_forced_is_set() -> None:
    forced = {"NCCL_PROTO", "NCCL_IB_DISABLE", "NCCL_DEBUG", "RDMAV_FORK_SAFE", "NCCL_ALGO"}
    for facts in (make_facts(2, efa=True, gpus=8), make_facts(2, efa=True, neurons=2)):
        assert not names(facts) & forced
