"""`train` from end to end on one host: read, supervise, report. The layers meet here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.run.base.loop import Loop
from muster.run.child.shims import ShimPool
from muster.train.limits import check_open_files
from muster.train.person import for_children, named
from muster.types.errors import ConfigError, MusterError

if TYPE_CHECKING:
    from muster.run.channel.identity import Identity
    from muster.run.job.context import JobContext
    from muster.run.job.supervisor import Output
    from muster.train.network_identity import NetworkIdentity
    from muster.types.cluster import Cluster
    from muster.types.deadlines import Deadlines
    from muster.types.job import Job, Settings
    from muster.types.outcome import Outcome

__all__ = ["run"]

FILES_S = 30.0  # how long the files of a host that has no peer to agree with may take


def run(environ: Mapping[str, str]) -> Outcome:
    """Runs the job that the environment and `/opt/ml/input` ask for, to its end on all hosts.

    Writes the status files, the record and the last lines. Must be called on the main thread.
    Raises nothing for what happens to the job: every failure is an outcome.
    """
    try:
        check_open_files()
        pool = ShimPool(Loop())
    except Exception as error:  # no folder for its socket, no descriptor left
        return _mute(environ, error)
    try:
        environ = named(environ, pool.folder)
        pool.warm_up(for_children(environ))
        return _run(environ, pool)
    except Exception as error:
        return _mute(environ, error)
    finally:
        pool.close()
        pool.loop.close()


def _run(environ: Mapping[str, str], pool: ShimPool) -> Outcome:
    # imported while the spare shim starts beside us
    from muster.contract.request.read import read_job
    from muster.stage.patience import Patience
    from muster.train.output import base_paths, close_output, open_output

    try:
        with Patience(base_paths(environ).base, _say_early):
            request = read_job(environ)
        if request.cluster.is_leader:
            check_open_files(hosts=len(request.cluster.hosts))
        job: Job | ConfigError = request
    except ConfigError as error:
        job = error
    output = open_output(environ, job)
    try:
        if isinstance(job, ConfigError):
            return _refuse(environ, job, output, pool)
        return _run_job(job, output, pool)
    except Exception as error:  # a defect of muster ends with files and an exit code too
        return _alone(environ, error, output)
    finally:
        close_output(job, output)


def _say_early(component: str, message: str, /, level: str = "INFO", **facts: object) -> None:
    """A line of a time when neither this host's name nor its secrets are known: of paths only."""
    import sys

    from muster.run.base.console import format_line
    from muster.types.plain import printable

    sys.stderr.write(printable(format_line("this-host", level, component, message, facts)))


def _run_job(job: Job, output: Output, pool: ShimPool) -> Outcome:
    from muster.run.job.supervisor import supervise
    from muster.train.network_identity import find_network_identity
    from muster.train.work import JobWork

    network = find_network_identity(job.cluster, output.console)
    work = JobWork(job, output, network, pool.folder)
    work.begin()
    context = _context(job.cluster, job.settings, job.deadlines, work.identity(), network)
    context = context._replace(around=work.around(), memory=work.memory())
    return supervise(context, work, output, pool)


def _refuse(
    environ: Mapping[str, str], error: ConfigError, output: Output, pool: ShimPool
) -> Outcome:
    """Bad input: reported to the other hosts if there are any and they can be reached."""
    from muster.contract.request.read import read_cluster

    for warning in error.warnings:
        output.console("read", warning, level="WARNING")
    try:
        cluster, settings, deadlines = read_cluster(environ)
    except ConfigError:
        return _alone(environ, error, output)
    if len(cluster.hosts) == 1:
        return _alone(environ, error, output)
    from muster.contract.findings import Findings
    from muster.contract.request.program import find_job_id
    from muster.run.channel.identity import Identity
    from muster.run.job.context import host_error_of
    from muster.run.job.supervisor import supervise
    from muster.train.network_identity import find_network_identity
    from muster.train.refusal import RefusalWork

    try:
        network = find_network_identity(cluster, output.console)
    except MusterError:
        return _alone(environ, error, output)  # what is wrong with the request comes first
    # the hyperparameters may be what is bad, so only variables say which job this is
    job_id = find_job_id(environ, {}, Findings())
    identity = Identity(job_id, cluster.me.name, cluster.current, {}, settings.secret.encode())
    context = _context(cluster, settings, deadlines, identity, network)
    work = RefusalWork(environ, cluster, output)
    return supervise(context._replace(host_error=host_error_of(error)), work, output, pool)


def _alone(environ: Mapping[str, str], error: Exception, output: Output) -> Outcome:
    """The outcome of this host when there is no peer to agree with."""
    from muster.run.job.context import Ending, host_error_of, write_and_say
    from muster.run.job.verdict import from_host_error
    from muster.train.refusal import RefusalWork

    outcome = from_host_error(host_error_of(error))
    work = RefusalWork(environ, None, output)
    write_and_say(work, Ending(outcome, None, (), {}, 0.0), FILES_S)
    return outcome


def _mute(environ: Mapping[str, str], error: Exception) -> Outcome:
    """The outcome when not even lines can be written: the failure file, and text on stderr."""
    import os
    import sys

    from muster.contract import report
    from muster.run.base.background import BackgroundCall
    from muster.run.job.context import host_error_of
    from muster.run.job.verdict import from_host_error
    from muster.train.output import base_paths
    from muster.types.masking import Masker
    from muster.types.shown import mark_of

    outcome = from_host_error(host_error_of(error))
    masker = Masker.of(environ)
    paths = base_paths(environ)

    def write() -> bool:
        return os.path.isdir(paths.base) and report.write(paths, outcome, masker)

    BackgroundCall("files", write).ended(FILES_S)
    sys.stderr.write(mark_of(environ) + report.failure_block(outcome, masker) + "\n")
    return outcome


def _context(
    cluster: Cluster,
    settings: Settings,
    deadlines: Deadlines,
    identity: Identity,
    network: NetworkIdentity,
) -> JobContext:
    from muster.run.job.context import JobContext

    return JobContext(
        cluster=cluster,
        identity=identity,
        deadlines=deadlines,
        address=network.address,
        control_port=settings.control_port,
        source=network.address if cluster.addresses else "",
        checks_names=not (settings.secret or settings.insecure_join),
        shown=settings.shown,
        resolve=network.resolve,
        port_holder=_port_holder,
    )


def _port_holder(address: str, port: int) -> str | None:
    from muster.stage.machine.network import port_holder

    return port_holder(address, port)
