"""A host that cannot take part: its request is bad, or nothing works here. It only reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.contract import report
from muster.run.base.background import BackgroundCall
from muster.run.job.context import Ending, host_error_of, write_and_say
from muster.run.job.verdict import from_host_error
from muster.train.output import base_paths
from muster.types.errors import InternalError
from muster.types.masking import Masker
from muster.types.outcome import Outcome
from muster.types.shown import mark_of

if TYPE_CHECKING:
    from muster.run.job.supervisor import Output
    from muster.types.cluster import Cluster

FILES_S = 30.0  # how long the files of a host that has no peer to agree with may take


class RefusalWork:
    """The work of a bad request. Satisfies `run.job.context.Work`; only `write` and `say` are ever
    reached."""

    def __init__(self, environ: Mapping[str, str], cluster: Cluster | None, output: Output) -> None:
        self._environ = environ
        self._cluster = cluster
        self._output = output

    def _never(self, *asked: object) -> Any:
        raise InternalError("a refused request is neither staged nor planned")

    stage = plan = at_start = check = _never

    def write(self, ending: Ending) -> bool:
        """The failure file, and nothing else."""
        paths = base_paths(self._environ)
        if not os.path.isdir(paths.base):
            return False
        report.reserve(paths)
        return report.write(paths, ending.outcome, self._output.masker)

    def say(self, ending: Ending, written: bool) -> None:
        from muster.train.last_words import say_last

        leads = self._cluster is None or self._cluster.is_leader
        say_last(self._output, ending, self._output.masker, leads, written)


def end_alone(environ: Mapping[str, str], error: Exception, output: Output) -> Outcome:
    """The outcome of this host when there is no peer to agree with."""
    outcome = from_host_error(host_error_of(error))
    write_and_say(RefusalWork(environ, None, output), Ending(outcome, None, {}, 0.0), FILES_S)
    return outcome


def end_mute(environ: Mapping[str, str], error: Exception) -> Outcome:
    """The outcome when not even lines can be written: the failure file, and text on stderr."""
    outcome = from_host_error(host_error_of(error))
    masker = Masker.of(environ)
    paths = base_paths(environ)

    def write() -> bool:
        return os.path.isdir(paths.base) and report.write(paths, outcome, masker)

    BackgroundCall("files", write).ended(FILES_S)
    sys.stderr.write(mark_of(environ) + report.failure_block(outcome, masker) + "\n")
    return outcome
