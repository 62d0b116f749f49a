"""Lines of a plan that say what runs where, alike for every launcher."""

from __future__ import annotations

from muster.plan.slots import devices
from muster.plan.world import World, outside
from muster.types.job import Job
from muster.types.names import listed


def layout(what: str, world: World) -> str:
    """One line: what runs where, as hosts x processes = world."""
    hosts: dict[int, int] = {}
    for processes in world.counts.values():
        hosts[processes] = hosts.get(processes, 0) + 1
    parts = [
        f"{count} host{'s' if count > 1 else ''} x {processes}"
        for processes, count in hosts.items()
    ]
    return f"{what} on {' + '.join(parts)} processes = world size {world.size}"


def outsiders(job: Job) -> tuple[str, ...]:
    """A note that names the hosts that hold no rank."""
    names = [job.cluster.hosts[host_index].name for host_index in outside(job.cluster)]
    if not names:
        return ()
    return (f"outside the distribution, running the script once each: {listed(names, 3)}",)


def shared_devices(job: Job, world: World) -> tuple[str, ...]:
    """A note when ranks share devices because the user allowed it."""
    host_index = job.cluster.current
    found, processes = devices(world.facts[host_index]), world.counts.get(host_index, 0)
    if not 0 < found < processes:
        return ()
    return (f"{processes} ranks share {found} devices here: MUSTER_OVERSUBSCRIBE is set",)
