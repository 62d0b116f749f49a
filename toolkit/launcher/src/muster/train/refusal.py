"""The work of a host whose request is bad: nothing is staged or started, only reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.types.errors import InternalError

if TYPE_CHECKING:
    from muster.plan.launchplan import LaunchPlan
    from muster.run.job.context import Ending
    from muster.run.job.supervisor import Output
    from muster.types.cluster import Cluster
    from muster.types.machine import HostFacts
    from muster.types.steps import StepRunner


class RefusalWork:
    """The work of a bad request. Satisfies `run.job.context.Work`; only `write` and `say` are ever
    reached."""

    def __init__(self, environ: Mapping[str, str], cluster: Cluster | None, output: Output) -> None:
        self._environ = environ
        self._cluster = cluster
        self._output = output

    def stage(self, run: StepRunner, leader_address: str) -> HostFacts:
        raise InternalError("a refused request is not staged")

    def plan(self, facts: Sequence[HostFacts]) -> LaunchPlan:
        raise InternalError("a refused request is not planned")

    def check(self, plan: LaunchPlan) -> None:
        raise InternalError("a refused request is not planned")

    def write(self, ending: Ending) -> bool:
        """The failure file, and nothing else."""
        import os

        from muster.contract import report
        from muster.train.output import base_paths

        paths = base_paths(self._environ)
        if not os.path.isdir(paths.base):
            return False
        report.reserve(paths)
        return report.write(paths, ending.outcome, self._output.masker)

    def say(self, ending: Ending, written: bool) -> None:
        from muster.train.last_words import say_last

        leads = self._cluster is None or self._cluster.is_leader
        say_last(self._output, ending, self._output.masker, leads, written)
