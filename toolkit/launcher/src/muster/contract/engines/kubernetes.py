"""Pods: MPIJob's hostfile, TrainJob (PET_*), JobSet and Indexed Job (a completion index)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from muster.contract.engines.hosts import COUNT, LEADER
from muster.contract.engines.values import Files, Values, each_once
from muster.types.engine import Engine
from muster.types.errors import ConfigError
from muster.types.plain import short

NAME = "kubernetes"
STOP_S = 25.0  # of the default grace period of 30 s
HOSTFILE, HOST_TABLE = "/etc/mpi/hostfile", "/etc/hosts"


def read(environ: Mapping[str, str], files: Files) -> Engine | None:
    """The pod's place in its job, in the order in which the kinds of jobs can be told apart."""
    if "K_MPI_JOB_ROLE" in environ or "OMPI_MCA_orte_default_hostfile" in environ:
        return _of_hostfile(environ, files)
    if "PET_NNODES" in environ and "PET_NODE_RANK" in environ:
        return _of_train_job(environ)
    if "JOB_COMPLETION_INDEX" in environ:
        return _of_indexed_job(environ, files)
    return None


def _of_hostfile(environ: Mapping[str, str], files: Files) -> Engine:
    values = Values(environ)
    path = environ.get("OMPI_MCA_orte_default_hostfile") or HOSTFILE
    rows = [line.split("#")[0].split() for line in files(path).splitlines()]
    rows = [row for row in rows if row]
    names = each_once(tuple(row[0] for row in rows), path)
    own = values.text("index", "HOSTNAME")
    mine = [at for at, name in enumerate(names) if own in (name, name.partition(".")[0])]
    if not mine:
        what = f"this pod, {short(own)}, is not one of the {len(names)} hosts in it"
        fix = "start `muster run` in the pods that the hostfile names, not in a launcher"
        raise ConfigError.of(path, what, fix)
    slots = [field[6:] for field in rows[mine[0]] if field.startswith("slots=")]
    values.origins.update(hosts=path, count=path)
    return values.engine(
        NAME,
        mine[0],
        len(names),
        names=names,
        slots=int(slots[0]) if slots and slots[0].isdecimal() else None,
        job=names[0].partition(".")[0].removesuffix("-worker-0"),
        stop_s=STOP_S,
    )


def _of_train_job(environ: Mapping[str, str]) -> Engine:
    values = Values(environ)
    least, _, most = values.text("count", "PET_NNODES").partition(":")
    if not least.isdecimal() or (most and most != least):
        what = f"expected a number of hosts that does not change, got {environ['PET_NNODES']!r}"
        raise ConfigError.of("PET_NNODES", what, "ask for as many nodes at least as at most")
    fix = "let the runtime set it"
    index = values.needed("index", "PET_NODE_RANK", fix=fix)
    leader = values.text("leader", "PET_MASTER_ADDR")
    if index and not leader:
        raise ConfigError.of("PET_MASTER_ADDR", "not set: the leader cannot be found", fix)
    slots = values.text("slots", "PET_NPROC_PER_NODE")
    job = re.sub(r"-node-0-0$", "", leader.partition(".")[0])
    return values.engine(
        NAME,
        index,
        int(least),
        leader=leader,
        slots=int(slots) if slots.isdecimal() else None,
        job=job,
        stop_s=STOP_S,
    )


def _of_indexed_job(environ: Mapping[str, str], files: Files) -> Engine:
    """The job does not say how many pods it has; the first pod's name follows from this one's."""
    values = Values(environ)
    fix = "set it to the job's completions in the pod's template"
    index = values.needed("index", "JOB_COMPLETION_INDEX", fix=fix)
    count = values.needed("count", COUNT, least=1, fix=fix)
    leader = values.text("leader", LEADER)
    own = environ.get("HOSTNAME", "")
    if not leader and own:
        full = _full_name(own, files(HOST_TABLE))
        host, dot, domain = full.partition(".")
        if host.endswith(f"-{index}"):
            leader = f"{host.removesuffix(f'-{index}')}-0{dot}{domain}"
            values.origins["leader"] = f"this pod's name in {HOST_TABLE}"
    if index and not leader:
        what = f"not set, and {short(own)} is no name of pod {index} of a job"
        raise ConfigError.of(LEADER, what, "set it to the first pod's name: JOB-0.SERVICE")
    job = re.sub(r"-0$", "", leader.partition(".")[0])
    return values.engine(NAME, index, count, leader=leader, job=job, stop_s=STOP_S)


def _full_name(own: str, table: str) -> str:
    """The pod's name with its service's, as the kubelet writes it beside the address."""
    for line in table.splitlines():
        found = line.split("#")[0].split()[1:]
        if own in found:
            return max(found, key=len)
    return own
