"""PyTorch: muster's tensor servers (`muster_parameter_server`), which the vendor has no match for.

Servers and workers get one list of addresses and a secret of the job, made when they start.
"""

from __future__ import annotations

from muster.plan import variables
from muster.plan.launchplan import Addition
from muster.plan.servers import layout as ps_layout
from muster.plan.servers.framework import LIBRARY
from muster.plan.servers.layout import Roles, ServerTemplate
from muster.plan.world import World
from muster.types.job import Job

SERVER_PORT = 8001
PROGRAM = ("-m", LIBRARY)
ADDRESSES = "PARAMETER_SERVER_ADDRESSES"
INDEX = "PARAMETER_SERVER_INDEX"
WORKERS = "PARAMETER_SERVER_WORKERS"
KEY = "PARAMETER_SERVER_KEY"


def parameter_servers(job: Job, world: World, template: ServerTemplate) -> Roles:
    """Ranks as torchrun would number them, and servers on every host."""
    here = job.cluster.current
    servers = ps_layout.place_servers(job, world, job.settings.ps_port or SERVER_PORT)
    names = ps_layout.names(job, world)
    addresses = ",".join(f"{names[one.host]}:{one.port}" for one in servers)
    shared = {ADDRESSES: addresses, WORKERS: str(world.size)}
    member = here in world.counts
    own = (
        Addition(ADDRESSES, addresses, "the parameter servers, in order"),
        Addition(WORKERS, str(world.size), "ranks that push and pull"),
    )
    return Roles(
        title="PyTorch",
        additions=(*own, *variables.threads(here, world, template.environ)) if member else (),
        replaces=(ADDRESSES, INDEX, WORKERS, KEY, *variables.RANK_VARIABLES),
        per_rank=variables.each_rank(world, here),
        services=tuple(
            template.service(one.name, PROGRAM, {**shared, INDEX: str(one.number)})
            for one in servers
            if one.host == here
        ),
        ports=ps_layout.name_ports(
            job, world, {"ps": tuple(one.port for one in servers)}, store=True
        ),
        agreed=("pytorch", addresses),
        notes=(ps_layout.where(job, servers),),
        secret_variable=KEY if member else "",
    )
