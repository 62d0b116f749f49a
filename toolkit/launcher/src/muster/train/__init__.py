"""`train` from end to end on one host: read, take part, supervise, report. The layers meet here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.run.base.loop import Loop
from muster.run.child.shims import ShimPool
from muster.train.environment import without_own_variables
from muster.train.limits import check_open_files
from muster.types.errors import ConfigError

if TYPE_CHECKING:
    from muster.types.job import Job
    from muster.types.outcome import Outcome

__all__ = ["run"]


def run(environ: Mapping[str, str]) -> Outcome:
    """Runs the job that the environment and `/opt/ml/input` ask for, to its end on all hosts.

    Writes the status files, the record and the last lines. Must be called on the main thread.
    Raises nothing for what happens to the job: every failure is an outcome.
    """
    pool = None
    try:
        check_open_files()
        pool = ShimPool(Loop())
        pool.warm_up(without_own_variables(environ))
        return _run(environ, pool)
    except Exception as error:  # no folder for its socket, no descriptor left, a defect of muster
        from muster.train.refusal import end_mute

        return end_mute(environ, error)
    finally:
        if pool is not None:
            pool.close()
            pool.loop.close()


def _run(environ: Mapping[str, str], pool: ShimPool) -> Outcome:
    # imported while the spare shim starts beside us
    from muster.run.job.supervisor import supervise
    from muster.train.context import part_of
    from muster.train.output import close_output, open_output
    from muster.train.refusal import end_alone

    request = _read(environ)
    output = open_output(environ, request)
    try:
        part = part_of(environ, request, output, pool.folder)
        if part is None:
            assert isinstance(request, ConfigError)
            return end_alone(environ, request, output)
        return supervise(part.context, part.work, output, pool)
    except Exception as error:  # a defect of muster ends with files and an exit code too
        return end_alone(environ, error, output)
    finally:
        close_output(request, output)


def _read(environ: Mapping[str, str]) -> Job | ConfigError:
    """The job of this host, or why it cannot be one."""
    from muster.contract.request.read import read_job
    from muster.stage.patience import Patience
    from muster.train.output import base_paths

    try:
        with Patience(base_paths(environ).base, _say_early):
            job = read_job(environ)
        if job.cluster.is_leader:
            check_open_files(hosts=len(job.cluster.hosts))
        return job
    except ConfigError as error:
        return error


def _say_early(component: str, message: str, /, level: str = "INFO", **facts: object) -> None:
    """A line of a time when neither this host's name nor its secrets are known: of paths only."""
    import sys

    from muster.run.base.console import format_line
    from muster.types.plain import printable

    sys.stderr.write(printable(format_line("this-host", level, component, message, facts)))
