"""No distribution: the script once on every host; the supervisor starts the shims itself.

On several hosts the script gets the leader's address and which interface to use, and nothing
else: scripts that build their own process group rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.plan import script, variables
from muster.plan.launchplan import Addition, Command, LaunchPlan
from muster.plan.world import World, build_world, by_host_index, job_ports, shared
from muster.types.distribution import switch_on
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts


def plan_single(job: Job, all_facts: Sequence[HostFacts], staged: Staged) -> LaunchPlan:
    """RANK and WORLD_SIZE are never set, and a user's own are left alone."""
    facts = by_host_index(job.cluster, all_facts)
    world = build_world(job, facts, dict.fromkeys(job.cluster.distribution, 1))
    several = len(facts) > 1
    links, notes = _links(job, world, staged.environ) if several else ((), ())
    additions = (*variables.spoken(staged.environ), *links)
    environ = variables.compose(staged.environ, additions)
    return LaunchPlan(
        *shared(job, world),
        script=Command(script.script_argv(staged), environ, staged.program.code_dir),
        script_is_python=script.is_python(staged.program),
        additions=additions,
        agreed=(
            *script.agreed_argv(staged, job.paths.base),
            world.address,
        ),
        notes=(*notes, *map(str, additions)),
        ports=job_ports(job, world, store=several),
        warnings=_warnings(job, len(facts)),
    )


def _warnings(job: Job, hosts: int) -> tuple[str, ...]:
    if hosts == 1:
        return ()
    return (
        f"no distribution was requested: each of {hosts} hosts runs the script once, by itself; to "
        f"train on all of them together: {switch_on(bool(job.settings.isolation))}",
    )


def _links(
    job: Job, world: World, environ: Mapping[str, str]
) -> tuple[tuple[Addition, ...], tuple[str, ...]]:
    """What a script needs to find the other hosts by itself, and the notes on it."""
    from muster.plan.fabric import plan_fabric  # a job of one host does without

    fabric = plan_fabric(job, world.facts, environ)
    leader = variables.master(world)
    notes = (
        *variables.overridden(
            environ, variables.MASTER_VARIABLES, leader, "a job of several hosts"
        ),
        *fabric.notes,
    )
    return (*leader, *fabric.additions), notes
