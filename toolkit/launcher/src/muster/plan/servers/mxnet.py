"""MXNet: a scheduler, servers and workers, distinguished by DMLC_ROLE.

As the vendor's, but that only hosts of the distribution take part, that there may be another
number of servers, and that DMLC_INTERFACE is set. Only the scheduler has a fixed port.
"""

from __future__ import annotations

from muster.plan.launchplan import Addition, Service
from muster.plan.servers import layout as ps_layout
from muster.plan.servers.layout import LOOPBACK, Roles, ServerTemplate
from muster.plan.world import World
from muster.types.distribution import ParameterServer
from muster.types.job import Job

SCHEDULER_PORT = 8000
PROGRAM = ("-c", "import mxnet")  # which serves by its role, and ends
_INTERFACE, _VERBOSE = "DMLC_INTERFACE", "PS_VERBOSE"


def parameter_servers(
    job: Job, option: ParameterServer, world: World, template: ServerTemplate
) -> Roles:
    """The scheduler on the first host, servers and workers on all of them."""
    here = job.cluster.current
    port = option.scheduler_port or job.settings.ps_port or SCHEDULER_PORT
    servers = ps_layout.place_servers(job, world, 0)
    shared = _shared(job, world, port, len(servers))
    given = {
        name: template.environ[name] for name in (_INTERFACE, _VERBOSE) if name in template.environ
    }
    own = tuple(one for one in (*shared, *_own(job, option, world)) if one.name not in given)
    variables = {one.name: one.value for one in own}
    return Roles(
        title="MXNet",
        additions=(*own, Addition("DMLC_ROLE", "worker", "the script is a worker"))
        if here in world.counts
        else (),
        replaces=(*(one.name for one in shared), "DMLC_ROLE"),
        services=(
            *_scheduler(job, template, variables),
            *(
                template.service(one.name, PROGRAM, {**variables, "DMLC_ROLE": "server"})
                for one in servers
                if one.host == here
            ),
        ),
        ports=ps_layout.name_ports(job, world, {"ps": (port,)}, store=len(world.facts) > 1),
        agreed=("mxnet", *(f"{one.name}={one.value}" for one in shared)),
        notes=(
            f"scheduler on {job.cluster.leader.name} port {port}; {len(servers)} servers, "
            "host after host in turns",
            *(f"{name}={value} of the environment is kept" for name, value in given.items()),
        ),
    )


def _shared(job: Job, world: World, port: int, servers: int) -> tuple[Addition, ...]:
    """The variables that all processes of the job share."""
    leader = world.facts[job.cluster.leader.host_index].address
    address = LOOPBACK if len(world.facts) == 1 else leader
    return (
        Addition("DMLC_PS_ROOT_URI", address, "the scheduler's host"),
        Addition("DMLC_PS_ROOT_PORT", str(port), "the scheduler's port"),
        Addition("DMLC_NUM_WORKER", str(world.size), "scripts of the distribution"),
        Addition("DMLC_NUM_SERVER", str(servers), "parameter servers"),
    )


def _own(job: Job, option: ParameterServer, world: World) -> tuple[Addition, ...]:
    """What is this host's, and gives way to the user's."""
    interface = world.facts[job.cluster.current].interface
    if len(world.facts) == 1 or ps_layout.shares_machine(world):
        interface = "lo"
    level = option.verbosity or 0
    return (
        *((Addition(_INTERFACE, interface, "the interface of the job"),) if interface else ()),
        Addition(_VERBOSE, str(level), "hyperparameter _ps_verbose, else 0"),
    )


def _scheduler(
    job: Job, template: ServerTemplate, variables: dict[str, str]
) -> tuple[Service, ...]:
    if not job.cluster.is_leader:
        return ()
    return (template.service("scheduler", PROGRAM, {**variables, "DMLC_ROLE": "scheduler"}),)
