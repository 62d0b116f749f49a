"""Lines of a plan that say what runs where, alike for every launcher."""

from __future__ import annotations

from muster.plan import world
from muster.plan.slots import devices
from muster.plan.world import World, some
from muster.spec.job import Job


def understood(what: str, meeting: World) -> str:
    """One line: what runs where, as hosts x processes = world."""
    hosts: dict[int, int] = {}
    for processes in meeting.counts.values():
        hosts[processes] = hosts.get(processes, 0) + 1
    parts = [
        f"{count} host{'s' if count > 1 else ''} x {processes}"
        for processes, count in hosts.items()
    ]
    return f"{what} on {' + '.join(parts)} processes = world size {meeting.size}"


def outsiders(job: Job) -> tuple[str, ...]:
    """A note that names the hosts that hold no rank."""
    names = [job.cluster.hosts[place].name for place in world.outside(job.cluster)]
    if not names:
        return ()
    return (f"outside the distribution, running the script once each: {some(names)}",)


def shared_devices(job: Job, meeting: World) -> tuple[str, ...]:
    """A note when ranks share devices because the user allowed it."""
    place = job.cluster.current
    found, processes = devices(meeting.facts[place]), meeting.counts.get(place, 0)
    if not 0 < found < processes:
        return ()
    return (f"{processes} ranks share {found} devices here: MUSTER_OVERSUBSCRIBE is set",)
