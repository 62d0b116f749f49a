"""How many ranks each distribution host holds: what was asked for, else the devices found.

Promises: B28.
"""

from __future__ import annotations

from muster.plan.degrees import check_degrees
from muster.types.distribution import Mpi
from muster.types.errors import ConfigError, Problem
from muster.types.job import Job
from muster.types.machine import HostFacts
from muster.types.names import listed

KEY = "sagemaker_mpi_num_of_processes_per_host"
TOTAL_KEY = "sagemaker_mpi_num_processes"


def devices(facts: HostFacts) -> int:
    """GPUs, else Neuron cores; 0 on a host for CPU training."""
    return facts.gpus or facts.neurons


def processes_per_host(
    job: Job, facts: tuple[HostFacts, ...], requested: int | None
) -> dict[int, int]:
    """Position -> number of ranks, for the distribution hosts.

    Hosts of different instance groups may differ, hosts of one group may not.
    Raises ConfigError: unequal devices in a group and no number given, or more ranks than devices
    (any number of ranks is right where no device is, and after MUSTER_OVERSUBSCRIBE=1).
    """
    members = job.cluster.distribution
    if requested is None:
        problems = _unequal_groups(job, facts)
        counts = {host_index: devices(facts[host_index]) or 1 for host_index in members}
    else:
        problems = [] if job.settings.oversubscribe else _exceeded(job, facts, requested)
        counts = dict.fromkeys(members, requested)
    if problems:
        raise ConfigError(problems)
    check_degrees(job, sum(counts.values()))
    return counts


def mpi_processes(job: Job, facts: tuple[HostFacts, ...], option: Mpi) -> dict[int, int]:
    """As `processes_per_host`; a total number of processes is spread evenly.

    Raises ConfigError, also for a total that the hosts cannot share or do not hold.
    """
    total, members = option.processes, job.cluster.distribution
    if total is None:
        return processes_per_host(job, facts, option.processes_per_host)
    each, rest = divmod(total, len(members))
    if rest or not each:
        raise ConfigError.of(
            TOTAL_KEY,
            f"{total} processes cannot be shared by {len(members)} hosts: every host holds as many",
            f"use a multiple of {len(members)}, or leave it out",
        )
    if option.processes_per_host is not None and each > option.processes_per_host:
        held = option.processes_per_host * len(members)
        raise ConfigError.of(
            TOTAL_KEY,
            f"{total} processes exceed {len(members)} hosts x {option.processes_per_host} "
            f"processes_per_host = {held}",
            f"use at most {held}, or raise processes_per_host",
        )
    return processes_per_host(job, facts, each)


def _unequal_groups(job: Job, facts: tuple[HostFacts, ...]) -> list[Problem]:
    """One problem for each group whose hosts found different numbers of devices."""
    first: dict[str, int] = {}
    problems: dict[str, Problem] = {}
    for host_index in job.cluster.distribution:
        host = job.cluster.hosts[host_index]
        reference = first.setdefault(host.group, host_index)
        here, there = devices(facts[host_index]), devices(facts[reference])
        if here != there and host.group not in problems:
            least = min(here, there) or 1
            problems[host.group] = Problem(
                f"instance group {host.group}",
                f"{job.cluster.hosts[reference].name} has {there} devices but {host.name} has "
                f"{here}; hosts of one group must hold equally many ranks",
                f"set processes_per_host (hyperparameter {KEY}) to {least}, or fix the host "
                "that misses devices",
            )
    return list(problems.values())


def _exceeded(job: Job, facts: tuple[HostFacts, ...], requested: int) -> list[Problem]:
    """One problem for each number of devices that is above 0 and too small."""
    short: dict[int, list[str]] = {}
    for host_index in job.cluster.distribution:
        found = devices(facts[host_index])
        if 0 < found < requested:
            short.setdefault(found, []).append(job.cluster.hosts[host_index].name)
    where = job.origins.get("processes_per_host", KEY)
    return [
        Problem(
            where,
            f"processes_per_host {requested} exceeds {found} devices on {listed(names, 3)}",
            f"set it to at most {min(short)}, or set MUSTER_OVERSUBSCRIBE=1 to share devices",
        )
        for found, names in sorted(short.items())
    ]
