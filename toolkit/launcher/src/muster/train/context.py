"""This host's part in the job: what its supervisor is given to know and to do."""

from __future__ import annotations

from collections.abc import Mapping

from muster.run.base.causes import Surroundings
from muster.run.base.memory import Memory
from muster.run.channel.identity import Identity
from muster.run.channel.messages import HostError
from muster.run.job.context import JobContext, Work, host_error_of
from muster.run.job.supervisor import Output
from muster.train.network_identity import NetworkIdentity, find_network_identity
from muster.types.cluster import Cluster
from muster.types.deadlines import Deadlines
from muster.types.debug import Debug
from muster.types.distribution import Distribution, Mpi
from muster.types.errors import ConfigError, MusterError
from muster.types.job import Job, Settings
from muster.types.run_files import host_folder
from muster.types.values import NamedTuple
from muster.version import __version__

DIGEST_SHOWN = 12  # characters
NOT_COUNTED, UNKNOWN = Memory(), Surroundings()


class Part(NamedTuple):
    """A host's part in a job, as `supervise` takes it."""

    context: JobContext
    work: Work


def part_of(
    environ: Mapping[str, str], request: Job | ConfigError, output: Output, folder: str
) -> Part | None:
    """What this host does for its request; None where it is refused and no other host can be told
    of it. `folder`: a private one. Raises MusterError without a network that others can reach."""
    if isinstance(request, ConfigError):
        return _refusal(environ, request, output)
    from muster.stage.machine.cgroup import Cgroups
    from muster.stage.machine.probe import shm_bytes
    from muster.train.work import JobWork

    job = request
    network = find_network_identity(job.cluster, output.console)
    work = JobWork(job, output, network, folder)
    cgroups = Cgroups()
    memory = Memory(cgroups.oom_kills, cgroups.memory_limit_bytes)
    around = Surroundings(job.settings.isolation, job.settings.source, shm_bytes=shm_bytes())
    where = job.cluster, job.settings, job.deadlines
    made = _context(where, job.id, _agreed(job), network, memory, around)
    debug = Debug()
    if job.settings.isolation:  # a host of `muster local`
        debug = job.settings.debug._replace(folder=host_folder(job))
    return Part(made._replace(throttled_s=cgroups.throttled_s, debug=debug), work)


def _refusal(environ: Mapping[str, str], error: ConfigError, output: Output) -> Part | None:
    """Bad input: reported to the other hosts if there are any and they can be reached."""
    from muster.contract.findings import Findings
    from muster.contract.request.program import find_job_id
    from muster.contract.request.read import read_cluster
    from muster.train.refusal import RefusalWork

    for warning in error.warnings:
        output.console("read", warning, level="WARNING")
    try:
        where = read_cluster(environ)
        cluster = where[0]
        if len(cluster.hosts) == 1:
            return None
        network = find_network_identity(cluster, output.console)
    except MusterError:
        return None  # what is wrong with the request comes first
    # the hyperparameters may be what is bad, so only variables say which job this is
    job_id = find_job_id(environ, {}, Findings())
    made = _context(where, job_id, {}, network, host_error=host_error_of(error))
    return Part(made, RefusalWork(environ, cluster, output))


def _agreed(job: Job) -> dict[str, str]:
    """What all hosts must agree on before anything is staged."""
    if len(job.cluster.hosts) == 1:
        return {}
    from muster.run.channel.wire import digest_of

    return {
        "hosts": str(len(job.cluster.hosts)),
        "program": job.program,
        "distribution": _agreed_option(job.distribution),
        "hyperparameters": digest_of(job.documents.hyperparameters)[:DIGEST_SHOWN],
        "toolkit": __version__,
    }


def _agreed_option(option: Distribution) -> str:
    """The option as hosts compare and show it: the custom options may hold secrets."""
    if isinstance(option, Mpi) and option.custom_options:
        from muster.run.channel.wire import digest_of

        option = option._replace(custom_options=digest_of(option.custom_options)[:DIGEST_SHOWN])
    return repr(option)


def _context(
    where: tuple[Cluster, Settings, Deadlines],
    job_id: str,
    agreed: Mapping[str, str],
    network: NetworkIdentity,
    memory: Memory = NOT_COUNTED,
    around: Surroundings = UNKNOWN,
    host_error: HostError | None = None,
) -> JobContext:
    cluster, settings, deadlines = where
    secret = settings.secret.encode()
    return JobContext(
        cluster=cluster,
        identity=Identity(job_id, cluster.me.name, cluster.current, agreed, secret),
        deadlines=deadlines,
        address=network.address,
        control_port=settings.control_port,
        source=network.address if cluster.addresses else "",
        checks_names=not (settings.secret or settings.insecure_join),
        shown=settings.shown,
        resolve=network.resolve,
        memory=memory,
        around=around,
        host_error=host_error,
        port_holder=_port_holder,
    )


def _port_holder(address: str, port: int) -> str | None:
    from muster.stage.machine.network import port_holder

    return port_holder(address, port)
