"""Interface and collective-library variables, from what was probed and never over the user's.

An image sets none of these and an instance type's name decides none. libfabric 1.18 and plugin
1.7 (2023) choose EFA by themselves, so the FI_* and NCCL_PROTO that the incumbent sets are left
out; a wrong one hangs a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.plan.launchplan import Addition
from muster.types.environment import MACHINE
from muster.types.job import Job
from muster.types.machine import HostFacts
from muster.types.names import listed
from muster.types.values import NamedTuple

SOCKET_VARIABLES = {
    "NCCL_SOCKET_IFNAME": "the interface of the job, for NCCL's bootstrap and sockets",
    "GLOO_SOCKET_IFNAME": "the interface of the job; gloo would take the host name's address",
    "TP_SOCKET_IFNAME": "the interface of the job, for torch's rpc",
}
NEURON_VARIABLES = {
    "FI_PROVIDER": ("efa", "Neuron's collectives reach other hosts by EFA, found on all hosts"),
    "FI_EFA_USE_DEVICE_RDMA": ("1", "lets EFA read Neuron device memory"),
}


class Fabric(NamedTuple):
    additions: tuple[Addition, ...]
    notes: tuple[str, ...]


def plan_fabric(job: Job, facts: tuple[HostFacts, ...], environ: Mapping[str, str]) -> Fabric:
    """What this host's scripts need to reach the other hosts; nothing in a job of one host."""
    if len(facts) == 1:
        return Fabric((), ())
    mine = facts[job.cluster.current]
    wanted = [
        Addition(name, mine.interface, reason, MACHINE)
        for name, reason in SOCKET_VARIABLES.items()
        if mine.interface
    ]
    members = [facts[host_index] for host_index in job.cluster.distribution]
    if all(fact.efa and fact.neurons for fact in members):
        wanted += [Addition(name, *value, MACHINE) for name, value in NEURON_VARIABLES.items()]
    kept = tuple(
        f"{item.name}={environ[item.name]} of the environment is kept"
        for item in wanted
        if item.name in environ and environ[item.name] != item.value
    )
    return Fabric(
        tuple(item for item in wanted if item.name not in environ),
        (*kept, *_efa_notes(job, members), *_cautions(environ, mine)),
    )


def _efa_notes(job: Job, members: list[HostFacts]) -> tuple[str, ...]:
    """What EFA means for a job of several hosts; EFA on some of them only cannot work."""
    without = [job.cluster.hosts[fact.host_index].name for fact in members if not fact.efa]
    if len(without) == len(members) or len(members) == 1:
        return ()
    if without:
        return (
            f"EFA is missing on {listed(without, 3)} and found on the other hosts: "
            "NCCL needs the same transport on all",
        )
    if all(fact.neurons for fact in members):
        return ()
    return ("EFA found on all hosts: libfabric and NCCL's plugin choose it, no FI_* is set",)


# name -> (whether the value hurts on this host, why)
_CAUTIONS: Mapping[str, tuple[Callable[[str, HostFacts], bool], str]] = {
    "FI_PROVIDER": (
        lambda value, fact: value == "efa" and not fact.efa,
        "no EFA device was found on this host; ranks may hang",
    ),
    "RDMAV_FORK_SAFE": (lambda value, fact: True, "it can break newer kernels; unset it"),
    "NCCL_SOCKET_IFNAME": (
        lambda value, fact: value == "^docker0",
        "it lets NCCL choose loopback; use ^docker0,lo",
    ),
}


def _cautions(environ: Mapping[str, str], mine: HostFacts) -> tuple[str, ...]:
    """Notes on values of the user that are kept although they are known to hurt."""
    return tuple(
        f"{name}={environ[name]} of the environment: {why}"
        for name, (hurts, why) in _CAUTIONS.items()
        if name in environ and hurts(environ[name], mine)
    )
