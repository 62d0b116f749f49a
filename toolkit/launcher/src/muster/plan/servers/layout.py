"""Where parameter servers run, and by which names and ports processes reach one another. Pure.

Hosts of a cluster have a network stack each, so all of them use the same ports. Hosts that share
one machine (`muster local --isolation process`) get a port each: the base and the host index.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.plan.launchplan import Addition, Command, Service, WorkEnds, port_variable
from muster.plan.world import World, job_ports
from muster.types.errors import ConfigError
from muster.types.job import Job
from muster.types.names import listed
from muster.types.values import NamedTuple

LAST_PORT = 65_535
LOOPBACK = "127.0.0.1"


class Server(NamedTuple):
    """One parameter server, the index of its host, its port there."""

    number: int
    host: int
    port: int

    @property
    def name(self) -> str:
        return f"server-{self.number}"


class Roles(NamedTuple):
    """What a framework asks for on this host, and what all hosts must agree on.

    `additions`: for scripts of distribution hosts. `replaces`: variables that are made anew for
    them, so that one of the surroundings is noted and left out.
    """

    title: str
    additions: tuple[Addition, ...]
    replaces: tuple[str, ...]
    ports: Mapping[str, int]
    agreed: tuple[str, ...]
    notes: tuple[str, ...]
    per_rank: Mapping[int, Mapping[str, str]] = {}
    services: tuple[Service, ...] = ()
    secret_variable: str = ""
    work_ends: WorkEnds = WorkEnds.WITH_RANKS


class ServerTemplate(NamedTuple):
    """What a server's command is made of: interpreter, environment without a role, folder."""

    python: str
    environ: Mapping[str, str]
    cwd: str

    def service(
        self,
        name: str,
        line: tuple[str, ...],
        variables: Mapping[str, str],
        may_end: bool = True,
    ) -> Service:
        """A server: the interpreter with `line`. It sees no GPU, which ranks are to have."""
        environ = {**self.environ, "CUDA_VISIBLE_DEVICES": "-1", **variables}
        environ.setdefault("PYTHONUNBUFFERED", "1")
        return Service(name, Command((self.python, *line), environ, self.cwd), may_end)


def shares_machine(world: World) -> bool:
    """Whether several hosts are one machine: all on loopback, or two with one address."""
    found = [world.facts[host_index].address for host_index in world.counts]
    loopback = all(address.startswith("127.") for address in found)
    return len(found) > 1 and (loopback or len(set(found)) < len(found))


def names(job: Job, world: World) -> dict[int, str]:
    """Position -> how the others reach a host: its name where every host resolves the leader's
    rightly, else its address."""
    if len(world.facts) == 1:
        return {job.cluster.current: LOOPBACK}
    resolved = all(fact.resolves_leader for fact in world.facts)
    hosts = job.cluster.hosts
    return {
        host_index: hosts[host_index].name if resolved else world.facts[host_index].address
        for host_index in world.counts
    }


def place_servers(job: Job, world: World, base: int) -> tuple[Server, ...]:
    """One server per distribution host, or MUSTER_PS_SERVERS of them, host after host in turns
    from the first."""
    members = tuple(world.counts)
    count = job.settings.ps_servers or len(members)
    shared = shares_machine(world)
    return tuple(
        Server(
            index,
            members[index % len(members)],
            base + (index if shared else index // len(members)),
        )
        for index in range(count)
    )


def worker_ports(world: World, base: int) -> dict[int, int]:
    """Position -> the port of its one worker."""
    shared = shares_machine(world)
    return {host_index: base + i * shared for i, host_index in enumerate(world.counts)}


def name_ports(
    job: Job, world: World, groups: Mapping[str, tuple[int, ...]], store: bool
) -> dict[str, int]:
    """The job's ports by name, `ps`, `ps-1`, ... for several of a group.

    Raises ConfigError when two are equal or one is no port.
    """
    named = job_ports(job, world, store)
    for group, ports in groups.items():
        for i, port in enumerate(sorted(set(ports))):
            other = next((name for name, taken in named.items() if taken == port), "")
            if other or port > LAST_PORT:
                what = f"port {port} is the {other} port too" if other else f"{port} is not a port"
                variable = port_variable(group)
                what = f"{len(ports)} ports are needed from {min(ports)} on, but {what}"
                raise ConfigError.of(variable, what, f"set {variable} to the first of free ports")
            named[f"{group}-{i}" if i else group] = port
    return named


def where(job: Job, servers: tuple[Server, ...]) -> str:
    """`server-0 on algo-1 port 2223, server-1 on algo-2 port 2223`: for the log."""
    hosts = job.cluster.hosts
    return listed((f"{one.name} on {hosts[one.host].name} port {one.port}" for one in servers), 3)
