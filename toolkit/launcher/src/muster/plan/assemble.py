"""A plan from what its option decides; what all options share is filled in here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from muster.plan import script
from muster.plan.launchplan import (
    Addition,
    Command,
    Direct,
    EndPolicy,
    LaunchPlan,
    Service,
    Starter,
)
from muster.plan.world import World
from muster.types.environment import Environment
from muster.types.job import Job, Staged

DIRECT, WITH_RANKS = Direct(), EndPolicy()


def assemble(
    job: Job,
    world: World,
    staged: Staged,
    *,
    argv: tuple[str, ...],
    environ: Environment,
    additions: tuple[Addition, ...],
    agreed: Iterable[str],
    notes: Iterable[str],
    ports: Mapping[str, int],
    starter: Starter = DIRECT,
    ends: EndPolicy = WITH_RANKS,
    per_rank: Mapping[int, Mapping[str, str]] = {},
    services: Sequence[Service] = (),
    secret_variable: str = "",
    warnings: tuple[str, ...] = (),
) -> LaunchPlan:
    """The plan of `job`. `argv`, `environ`: of one script; `agreed`: what hosts must agree on
    besides the script's line."""
    return LaunchPlan(
        option=job.distribution.option,
        world_size=world.size,
        ranks=world.ranks,
        leader=job.cluster.leader.host_index,
        master_addr=world.address,
        ports=ports,
        script=Command(argv, environ, staged.program.code_dir),
        script_is_python=script.is_python(staged.program),
        agreed=(*script.agreed_argv(staged, job.paths.base), *agreed),
        starter=starter,
        ends=ends,
        services=tuple(services),
        per_rank=per_rank,
        secret_variable=secret_variable,
        additions=additions,
        notes=tuple(notes),
        warnings=warnings,
    )


def job_ports(job: Job, world: World, store: bool = True) -> dict[str, int]:
    """The ports that muster's own processes need: between hosts, and for rendezvous."""
    control = {"control": job.settings.control_port} if len(world.facts) > 1 else {}
    return {**control, "store": world.port} if store else control
