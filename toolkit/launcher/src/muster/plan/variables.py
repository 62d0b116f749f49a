"""The environment that a script gets: what is added, what is taken out, and a note for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.plan.launchplan import Addition
from muster.plan.world import World
from muster.types.environment import MACHINE, Environment
from muster.types.values import NamedTuple

# What torchrun makes for every rank (torch.distributed.elastic.agent.server.local_elastic_agent).
RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
)
MASTER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")

# The secret of the join never reaches a rank.
SECRETS = ("MUSTER_JOB_SECRET",)


class Setting(NamedTuple):
    """What this host's processes get in their environment, and what is left out of it.

    `additions`: for scripts; `for_launch`: those for the launcher where it gets others.
    """

    additions: tuple[Addition, ...]
    without: tuple[str, ...]
    notes: tuple[str, ...]
    for_launch: tuple[Addition, ...] = ()


def spoken(environ: Mapping[str, str]) -> tuple[Addition, ...]:
    """What Python says reaches the log: at once, so that a killed script has said all that it
    printed, and with the line where it crashed in compiled code."""
    made = (
        Addition("PYTHONUNBUFFERED", "1", "lines appear when they are printed"),
        Addition("PYTHONFAULTHANDLER", "1", "a crash prints the line where it happened"),
    )
    return tuple(addition for addition in made if addition.name not in environ)


def master(world: World) -> tuple[Addition, ...]:
    """Where a script finds the leader, for scripts without a launcher that sets it."""
    return (
        Addition("MASTER_ADDR", world.address, world.address_reason),
        Addition("MASTER_PORT", str(world.port), "the store port of the job"),
    )


def threads(
    host_index: int, world: World, environ: Mapping[str, str], otherwise: str = ""
) -> tuple[Addition, ...]:
    """Each rank's share of the CPUs, where one thread or all CPUs would be each one's.

    `otherwise`: the value that applies without it.
    """
    processes, cpus = world.counts[host_index], world.facts[host_index].cpus
    if processes == 1 or "OMP_NUM_THREADS" in environ:
        return ()
    reason = f"{cpus} CPUs for {processes} processes{otherwise and '; '}{otherwise}"
    return (Addition("OMP_NUM_THREADS", str(max(1, cpus // processes)), reason, MACHINE),)


def each_rank(world: World, host: int) -> dict[int, dict[str, str]]:
    """rank -> its variables as torchrun would set them, for ranks that torchrun does not start."""
    local = str(world.counts.get(host, 0))
    return {
        slot.rank: {
            "RANK": str(slot.rank),
            "LOCAL_RANK": str(slot.local_rank),
            "WORLD_SIZE": str(world.size),
            "LOCAL_WORLD_SIZE": local,
        }
        for slot in world.ranks
        if slot.host == host and host in world.counts
    }


def each_data_parallel_rank(world: World, host: int) -> dict[int, dict[str, str]]:
    """rank -> who it is in the words of smdistributed.dataparallel. Hugging Face's Trainer reads
    the local rank there, wherever it sees that library asked for."""
    return {
        slot.rank: {
            "SMDATAPARALLEL_RANK": str(slot.rank),
            "SMDATAPARALLEL_LOCAL_RANK": str(slot.local_rank),
            "SMDATAPARALLEL_SIZE": str(world.size),
        }
        for slot in world.ranks
        if slot.host == host and host in world.counts
    }


def overridden(
    environ: Mapping[str, str], names: Iterable[str], additions: Iterable[Addition], by: str
) -> tuple[str, ...]:
    """One note for each of `names` that the user set and that the job sets otherwise."""
    kept = {addition.name: addition.value for addition in additions}
    return tuple(
        f"{name}={environ[name]} of the environment is overridden: {by} sets it"
        for name in names
        if name in environ and environ[name] != kept.get(name)
    )


def compose(
    environ: Mapping[str, str], additions: Iterable[Addition], without: Iterable[str] = ()
) -> Environment:
    """`environ` less `without` and less what no child may see, then the additions."""
    result = Environment.of(environ).less((*SECRETS, *without))
    for one in additions:
        result = result.plus({one.name: one.value}, f"{one.source}: {one.reason}")
    return result
