"""`train` from end to end on one host: read, supervise, report. The layers meet here.

Source: architecture.md "The life of a job".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.contract.read import read_cluster, read_job
from muster.run.identity import Identity
from muster.run.post import Ending, Post, trouble_of
from muster.run.verdict import from_trouble
from muster.spec.errors import ConfigError, MusterError
from muster.spec.outcome import Outcome
from muster.train_job.place import Place, find_place

if TYPE_CHECKING:
    from muster.run.supervise import Output
    from muster.spec.cluster import Cluster
    from muster.spec.deadlines import Deadlines
    from muster.spec.job import Job, Settings

__all__ = ["run"]


def run(environ: Mapping[str, str]) -> Outcome:
    """Runs the job that the environment and `/opt/ml/input` ask for, to its end on all hosts.

    Writes the status files, the record and the last lines. Must be called on the main thread.
    Raises nothing for what happens to the job: every failure is an outcome.
    """
    from muster.train_job.output import close_output, open_output

    try:
        job: Job | ConfigError = read_job(environ)
    except ConfigError as error:
        job = error
    output = open_output(environ, job)
    try:
        if isinstance(job, ConfigError):
            return _refuse(environ, job, output)
        return _run_job(job, output)
    except Exception as error:  # also a defect of ours ends with files and a code of its own
        return _alone(environ, error, output)
    finally:
        close_output(job, output)


def _run_job(job: Job, output: Output) -> Outcome:
    from muster.run.supervise import supervise
    from muster.train_job.work import JobWork

    place = find_place(job.cluster, output.console)
    work = JobWork(job, output, place)
    work.begin()
    post = _post(job.cluster, job.settings, job.deadlines, job.environ, place)
    post = post._replace(identity=work.identity(), memory_note=work.memory_note)
    return supervise(post, work, output)


def _refuse(environ: Mapping[str, str], error: ConfigError, output: Output) -> Outcome:
    """Bad input: told to the other hosts when there are any and they can be found."""
    from muster.train_job.refusal import RefusalWork

    try:
        cluster, settings, deadlines = read_cluster(environ)
    except ConfigError:
        return _alone(environ, error, output)
    if len(cluster.hosts) == 1:
        return _alone(environ, error, output)
    from muster.run.supervise import supervise

    try:
        place = find_place(cluster, output.console)
    except MusterError:
        return _alone(environ, error, output)  # what is wrong with the request comes first
    post = _post(cluster, settings, deadlines, environ, place)
    work = RefusalWork(environ, cluster, output)
    return supervise(post._replace(trouble=trouble_of(error)), work, output)


def _alone(environ: Mapping[str, str], error: Exception, output: Output) -> Outcome:
    """The outcome of this host when there is nobody to agree with."""
    from muster.train_job.refusal import RefusalWork

    outcome = from_trouble(trouble_of(error))
    RefusalWork(environ, None, output).write(Ending(outcome, None, (), {}, 0.0))
    return outcome


def _post(
    cluster: Cluster,
    settings: Settings,
    deadlines: Deadlines,
    environ: Mapping[str, str],
    place: Place,
) -> Post:
    checks_names = not (settings.secret or settings.insecure_join or cluster.addresses)
    identity = Identity(
        environ.get("TRAINING_JOB_NAME", ""),
        cluster.me.name,
        cluster.current,
        {},
        settings.secret.encode(),
    )
    return Post(
        cluster=cluster,
        identity=identity,
        deadlines=deadlines,
        address=place.address,
        control_port=settings.control_port,
        checks_names=checks_names,
        log_prefix=settings.log_prefix,
        environ=environ,
        resolve=place.resolve,
        memory_note=lambda: "",
    )
