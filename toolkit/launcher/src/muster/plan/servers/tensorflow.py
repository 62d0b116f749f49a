"""TensorFlow: TF_CONFIG for parameter servers and for MultiWorkerMirroredStrategy.

As the vendor's, but that the first worker is called `chief`, which TensorFlow 2 accepts and
`master` not (MUSTER_TF_CHIEF=master keeps that), that there may be another number of servers,
that hosts outside the distribution have no part, and that hosts on one machine have ports of
their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from muster.plan.launchplan import Addition, Service, WorkEnds
from muster.plan.script import TENSORFLOW_SERVER
from muster.plan.servers import layout as ps_layout
from muster.plan.servers.layout import Roles, Server, ServerTemplate
from muster.plan.world import World
from muster.types.errors import ConfigError
from muster.types.job import Job

WORKER_PORT, SERVER_PORT, MIRRORED_PORT = 2222, 2223, 8890
RUNNING = "Running distributed training job with"  # lines of the vendor's image that tests look for
CONFIG = "TF_CONFIG"
Cluster = Mapping[str, Sequence[str]]


def parameter_servers(job: Job, world: World, template: ServerTemplate) -> Roles:
    """The first host's script is the chief, the others' are workers; servers are processes of
    muster.

    Raises ConfigError on a single host: a chief has no worker to give work to.
    """
    members = tuple(world.counts)
    if len(members) < 2:
        raise ConfigError.of(
            job.origins.get("distribution", "distribution"),
            "TensorFlow's parameter servers need at least 2 hosts, a chief and a worker: "
            f"{len(members)} takes part",
            "use 2 or more hosts, or none of this option: one host trains alone",
        )
    first = job.settings.worker_port or WORKER_PORT
    workers = ps_layout.worker_ports(world, first)
    after = first + len(members) if ps_layout.shares_machine(world) else SERVER_PORT
    servers = ps_layout.place_servers(job, world, job.settings.ps_port or after)
    names = ps_layout.names(job, world)
    chief = job.settings.tf_chief
    cluster = {
        chief: [_at(names, workers, members[0])],
        "worker": [_at(names, workers, host_index) for host_index in members[1:]],
        "ps": [f"{names[one.host]}:{one.port}" for one in servers],
    }
    here = job.cluster.current
    task = (
        (chief, 0)
        if here == members[0]
        else ("worker", members.index(here) - 1)
        if here in members
        else None
    )
    return Roles(
        title="TensorFlow",
        additions=() if task is None else (_addition(cluster, *task),),
        replaces=(CONFIG,),
        services=tuple(_service(template, one, cluster) for one in servers if one.host == here),
        ports=ps_layout.name_ports(
            job,
            world,
            {"worker": tuple(workers.values()), "ps": tuple(one.port for one in servers)},
            store=True,
        ),
        agreed=("tensorflow", _as_text(cluster)),
        notes=(
            f"{RUNNING} parameter servers",
            f"{chief} on {job.cluster.leader.name} port {first}; {ps_layout.where(job, servers)}",
            f"when the {chief} has ended, workers that do nothing more are ended",
        ),
        work_ends=WorkEnds.WITH_RANK_0,
    )


def mirrored_workers(job: Job, world: World) -> Roles:
    """MultiWorkerMirroredStrategy: one worker per host, which reduce among themselves."""
    members = tuple(world.counts)
    ports = ps_layout.worker_ports(world, job.settings.worker_port or MIRRORED_PORT)
    names = ps_layout.names(job, world)
    cluster = {"worker": [_at(names, ports, host_index) for host_index in members]}
    here = job.cluster.current
    task = members.index(here) if here in members else None
    return Roles(
        title="TensorFlow",
        additions=() if task is None else (_addition(cluster, "worker", task),),
        replaces=(CONFIG,),
        ports=ps_layout.name_ports(
            job, world, {"worker": tuple(ports.values())}, store=len(world.facts) > 1
        ),
        agreed=("tensorflow", _as_text(cluster)),
        notes=(f"{RUNNING} multi_worker_mirrored_strategy setup",),
    )


def config(cluster: Cluster, kind: str, index: int) -> str:
    """TF_CONFIG of one process."""
    return _as_text(
        {
            "cluster": cluster,
            "environment": "cloud",
            "task": {"index": index, "type": kind},
        }
    )


def _addition(cluster: Cluster, kind: str, index: int) -> Addition:
    return Addition(CONFIG, config(cluster, kind, index), f"this script is {kind} {index}")


def _service(template: ServerTemplate, server: Server, cluster: Cluster) -> Service:
    environ = {CONFIG: config(cluster, "ps", server.number)}
    # it serves until it is ended
    return template.service(server.name, (TENSORFLOW_SERVER,), environ, may_end=False)


def _at(names: Mapping[int, str], ports: Mapping[int, int], host_index: int) -> str:
    return f"{names[host_index]}:{ports[host_index]}"


def _as_text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
