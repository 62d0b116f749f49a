"""Parameter servers beside the ranks of every host, and TensorFlow's mirrored workers.

The supervisor starts the scripts itself; servers are services of the plan. Each framework says
in a module of its own (`ps_*`) which roles there are and what tells a process its own.
Promises: B48.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.plan import notes, script, variables
from muster.plan.fabric import plan_fabric
from muster.plan.launchplan import Addition, Command, EndPolicy, LaunchPlan
from muster.plan.servers import mxnet, pytorch, tensorflow
from muster.plan.servers.framework import MXNET, PYTORCH, TENSORFLOW, TITLES, choose_framework
from muster.plan.servers.layout import Roles, ServerTemplate
from muster.plan.slots import KEY, processes_per_host
from muster.plan.world import World, build_world, by_host_index, shared
from muster.types.distribution import ParameterServer
from muster.types.errors import ConfigError
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts
from muster.types.tools import Tools


def plan_parameter_server(
    job: Job,
    option: ParameterServer,
    all_facts: Sequence[HostFacts],
    staged: Staged,
    tools: Tools,
) -> LaunchPlan:
    """Raises ConfigError: no framework or an ambiguous one, too few hosts, processes that
    hosts cannot hold, or ports that are taken twice."""
    facts = by_host_index(job.cluster, all_facts)
    framework = choose_framework(job, option, tools.frameworks)
    world = build_world(job, facts, _counts(job, option, framework, facts))
    links = plan_fabric(job, facts, staged.environ)
    common = (
        *variables.spoken(staged.environ),
        *(variables.master(world) if _meets(framework, world) else ()),
        *links.additions,
    )
    roles = _roles(job, option, framework, world, staged, common)
    additions = (*common, *roles.additions)
    environ = variables.compose(staged.environ, additions, roles.replaces)
    overridden = variables.overridden(
        staged.environ, (*roles.replaces, *variables.MASTER_VARIABLES), additions, option.option
    )
    return LaunchPlan(
        *shared(job, world),
        script=Command(_argv(framework, staged), environ, staged.program.code_dir),
        script_is_python=script.is_python(staged.program),
        additions=additions,
        agreed=(*script.agreed_argv(staged, job.paths.base), world.address, *roles.agreed),
        notes=(
            notes.layout(f"{option.option}: {roles.title}", world),
            *roles.notes,
            *map(str, additions),
            *overridden,
            *links.notes,
            *notes.outsiders(job),
            *notes.shared_devices(job, world),
        ),
        ports=roles.ports,
        ends=EndPolicy(roles.work_ends),
        per_rank=roles.per_rank,
        services=roles.services,
        secret_variable=roles.secret_variable,
    )


def _counts(
    job: Job, option: ParameterServer, framework: str, facts: tuple[HostFacts, ...]
) -> dict[int, int]:
    """PyTorch: a rank per device, else one, as with torchrun. The others run one script per host:
    their strategies take all devices of a host by themselves."""
    asked = option.processes_per_host
    if framework == PYTORCH:
        return processes_per_host(job, facts, asked)
    if asked not in (None, 1):
        raise ConfigError.of(
            job.origins.get("processes_per_host", KEY),
            f"{option.option} of {TITLES[framework]} runs one process per host, got {asked}",
            "leave it out: the one process uses all devices of its host",
        )
    return dict.fromkeys(job.cluster.distribution, 1)


def _argv(framework: str, staged: Staged) -> tuple[str, ...]:
    """MXNet's library waits at its end for all workers, as MPI does, and ours says goodbye at its
    end: one that fails must leave, and be seen to have failed."""
    return script.script_argv(staged) if framework == TENSORFLOW else script.bound_argv(staged)


def _meets(framework: str, world: World) -> bool:
    return framework == PYTORCH or len(world.facts) > 1


def _roles(
    job: Job,
    option: ParameterServer,
    framework: str,
    world: World,
    staged: Staged,
    common: tuple[Addition, ...],
) -> Roles:
    template = ServerTemplate(
        staged.python,
        variables.compose(staged.environ, common, variables.RANK_VARIABLES),
        staged.program.code_dir,
    )
    if framework == PYTORCH:
        return pytorch.parameter_servers(job, world, template)
    if framework == MXNET:
        return mxnet.parameter_servers(job, option, world, template)
    if option.option == "multi_worker_mirrored_strategy":
        return tensorflow.mirrored_workers(job, world)
    return tensorflow.parameter_servers(job, world, template)
