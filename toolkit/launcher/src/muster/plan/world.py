"""Which host holds which ranks, and where they rendezvous: computed from the facts of all hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.plan.launchplan import RankSlot
from muster.types.cluster import Cluster
from muster.types.errors import ConfigError, InternalError, Problem
from muster.types.job import Job
from muster.types.machine import HostFacts
from muster.types.names import listed
from muster.types.values import NamedTuple


class World(NamedTuple):
    """The ranks of a job and where they rendezvous.

    `facts`: one per host, by host index. `counts`: host index -> ranks, distribution hosts only.
    `ranks`: as in LaunchPlan. `size`: ranks in the world, without those of the other hosts.
    `address`, `port`: MASTER_ADDR and MASTER_PORT; `address_reason` says why it is this one.
    """

    facts: tuple[HostFacts, ...]
    counts: Mapping[int, int]
    ranks: tuple[RankSlot, ...]
    size: int
    address: str
    address_reason: str
    port: int


def by_host_index(cluster: Cluster, facts: Sequence[HostFacts]) -> tuple[HostFacts, ...]:
    """One host's facts after the other. Raises InternalError when the join left a host out."""
    found = {fact.host_index: fact for fact in facts}
    if sorted(found) != list(range(len(cluster.hosts))) or len(found) != len(facts):
        places = sorted(fact.host_index for fact in facts)
        raise InternalError(f"facts of positions {places} for {len(cluster.hosts)} hosts")
    return tuple(found[host_index] for host_index in range(len(found)))


def check_ipv4(cluster: Cluster, facts: Sequence[HostFacts], option: str) -> None:
    """Raises ConfigError where hosts of an option that is for IPv4 alone have only IPv6."""
    lacking = [cluster.hosts[one.host_index].name for one in facts if ":" in one.address]
    if lacking and len(facts) > 1:
        what = f"needs an IPv4 address on every host; with IPv6 alone: {listed(lacking, 3)}"
        fix = "give the hosts IPv4 addresses, or use torch_distributed, which runs over IPv6"
        raise ConfigError([Problem(option, what, fix)])


def outside(cluster: Cluster) -> tuple[int, ...]:
    """Positions of the hosts without a distribution role: each runs the script once."""
    return tuple(sorted(set(range(len(cluster.hosts))).difference(cluster.distribution)))


def build_world(job: Job, facts: tuple[HostFacts, ...], counts: Mapping[int, int]) -> World:
    """The world of `counts` ranks per distribution host, numbered in the order of the hosts.

    Hosts outside the distribution get the numbers after those, one each.
    """
    cluster = job.cluster
    members = (
        (host_index, local)
        for host_index in cluster.distribution
        for local in range(counts[host_index])
    )
    helpers = ((host_index, 0) for host_index in outside(cluster))
    table = tuple(
        RankSlot(rank, host_index, local)
        for rank, (host_index, local) in enumerate((*members, *helpers))
    )
    address, reason = _master_address(cluster, facts)
    return World(
        facts, counts, table, sum(counts.values()), address, reason, job.settings.store_port
    )


def shared(job: Job, world: World) -> tuple[str, int, tuple[RankSlot, ...], int, str]:
    """The first fields of a plan, which follow from its job alone."""
    leader = job.cluster.leader.host_index
    return job.distribution.option, world.size, world.ranks, leader, world.address


def job_ports(job: Job, world: World, store: bool = True) -> dict[str, int]:
    """The ports that muster's own processes need: between hosts, and for rendezvous."""
    control = {"control": job.settings.control_port} if len(world.facts) > 1 else {}
    return {**control, "store": world.port} if store else control


def _master_address(cluster: Cluster, facts: tuple[HostFacts, ...]) -> tuple[str, str]:
    """MASTER_ADDR and why: the leader's name only where every host resolves it rightly."""
    if len(facts) == 1:
        return "127.0.0.1", "the job has one host"
    blind = [cluster.hosts[fact.host_index].name for fact in facts if not fact.resolves_leader]
    if not blind:
        return cluster.leader.name, "the leader; every host resolves its name to the same address"
    return (
        facts[cluster.leader.host_index].address,
        f"the leader's address; its name does not lead there on {listed(blind, 3)}",
    )
