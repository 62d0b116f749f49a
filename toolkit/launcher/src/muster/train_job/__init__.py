"""`train` from end to end on one host: read, supervise, report. The layers meet here.

Source: architecture.md "The life of a job".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.run.loop import Loop
from muster.run.process import Nursery
from muster.spec.errors import ConfigError, MusterError
from muster.train_job.limits import check_open_files
from muster.train_job.person import named

if TYPE_CHECKING:
    from muster.run.post import Post
    from muster.run.supervise import Output
    from muster.spec.cluster import Cluster
    from muster.spec.deadlines import Deadlines
    from muster.spec.job import Job, Settings
    from muster.spec.outcome import Outcome
    from muster.train_job.place import Place

__all__ = ["run"]

# Never handed to a rank, a launcher or an installer: the job secret is among them (protocol.md
# 2), and a `train` or `muster local` started by a script is to be a job of its own.
OURS_ALONE = "MUSTER_"
FILES_S = 30.0  # how long the files of a host that has nobody to agree with may take


def run(environ: Mapping[str, str]) -> Outcome:
    """Runs the job that the environment and `/opt/ml/input` ask for, to its end on all hosts.

    Writes the status files, the record and the last lines. Must be called on the main thread.
    Raises nothing for what happens to the job: every failure is an outcome.
    """
    try:
        check_open_files()
        nursery = Nursery(Loop())
    except Exception as error:  # no folder for its socket, no descriptor left
        return _mute(environ, error)
    try:
        environ = named(environ, nursery.folder)
        nursery.warm_up({k: v for k, v in environ.items() if not k.startswith(OURS_ALONE)})
        return _run(environ, nursery)
    except Exception as error:
        return _mute(environ, error)
    finally:
        nursery.close()
        nursery.loop.close()


def _run(environ: Mapping[str, str], nursery: Nursery) -> Outcome:
    # imported while the spare shim starts beside us
    from muster.contract.read import read_job
    from muster.stage.patience import Patience
    from muster.train_job.output import base_paths, close_output, open_output

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
            return _refuse(environ, job, output, nursery)
        return _run_job(job, output, nursery)
    except Exception as error:  # also a defect of ours ends with files and a code of its own
        return _alone(environ, error, output)
    finally:
        close_output(job, output)


def _say_early(component: str, message: str, /, level: str = "INFO", **facts: object) -> None:
    """A line of a time when neither this host's name nor its secrets are known: of paths only."""
    import sys

    from muster.run.console import format_line
    from muster.spec.plain import printable

    sys.stderr.write(printable(format_line("this-host", level, component, message, facts)))


def _run_job(job: Job, output: Output, nursery: Nursery) -> Outcome:
    from muster.run.supervise import supervise
    from muster.train_job.place import find_place
    from muster.train_job.work import JobWork

    place = find_place(job.cluster, output.console)
    work = JobWork(job, output, place, nursery.folder)
    work.begin()
    post = _post(job.cluster, job.settings, job.deadlines, job.environ, place)
    post = post._replace(identity=work.identity(), around=work.around(), memory=work.memory())
    return supervise(post, work, output, nursery)


def _refuse(
    environ: Mapping[str, str], error: ConfigError, output: Output, nursery: Nursery
) -> Outcome:
    """Bad input: told to the other hosts when there are any and they can be found."""
    from muster.contract.read import read_cluster

    for warning in error.warnings:
        output.console("read", warning, level="WARNING")
    try:
        cluster, settings, deadlines = read_cluster(environ)
    except ConfigError:
        return _alone(environ, error, output)
    if len(cluster.hosts) == 1:
        return _alone(environ, error, output)
    from muster.run.post import trouble_of
    from muster.run.supervise import supervise
    from muster.train_job.place import find_place
    from muster.train_job.refusal import RefusalWork

    try:
        place = find_place(cluster, output.console)
    except MusterError:
        return _alone(environ, error, output)  # what is wrong with the request comes first
    post = _post(cluster, settings, deadlines, environ, place)
    work = RefusalWork(environ, cluster, output)
    return supervise(post._replace(trouble=trouble_of(error)), work, output, nursery)


def _alone(environ: Mapping[str, str], error: Exception, output: Output) -> Outcome:
    """The outcome of this host when there is nobody to agree with."""
    from muster.run.post import Ending, trouble_of, write_and_say
    from muster.run.verdict import from_trouble
    from muster.train_job.refusal import RefusalWork

    outcome = from_trouble(trouble_of(error))
    work = RefusalWork(environ, None, output)
    write_and_say(work, Ending(outcome, None, (), {}, 0.0), FILES_S)
    return outcome


def _mute(environ: Mapping[str, str], error: Exception) -> Outcome:
    """The outcome when not even lines can be written: the failure file, and text on stderr."""
    import os
    import sys

    from muster.contract import report
    from muster.run.background import BackgroundCall
    from muster.run.post import trouble_of
    from muster.run.verdict import from_trouble
    from muster.spec.masking import Masker
    from muster.spec.shown import mark_of
    from muster.train_job.output import base_paths

    outcome = from_trouble(trouble_of(error))
    masker = Masker.of(environ)
    paths = base_paths(environ)

    def write() -> bool:
        return os.path.isdir(paths.base) and report.write(paths, outcome, masker)

    BackgroundCall("files", write).ended(FILES_S)
    sys.stderr.write(mark_of(environ) + report.failure_block(outcome, masker) + "\n")
    return outcome


def _post(
    cluster: Cluster,
    settings: Settings,
    deadlines: Deadlines,
    environ: Mapping[str, str],
    place: Place,
) -> Post:
    from muster.contract.findings import Findings
    from muster.contract.program import find_job_id
    from muster.run.identity import Identity
    from muster.run.post import Post

    identity = Identity(
        find_job_id(environ, {}, Findings()),
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
        source=place.address if cluster.addresses else "",
        checks_names=not (settings.secret or settings.insecure_join),
        shown=settings.shown,
        resolve=place.resolve,
        port_holder=_port_holder,
    )


def _port_holder(address: str, port: int) -> str | None:
    from muster.stage.network import port_holder

    return port_holder(address, port)
