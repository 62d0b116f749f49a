"""The work of a host whose request is bad: nothing is staged or started, only told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.spec.errors import InternalError

if TYPE_CHECKING:
    from muster.plan.launchplan import LaunchPlan
    from muster.run.post import Ending
    from muster.run.supervise import Output
    from muster.spec.cluster import Cluster
    from muster.spec.machine import HostFacts
    from muster.spec.steps import StepRunner


class RefusalWork:
    """Satisfies `run.post.Work`; only `write` and `say` are ever reached."""

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
        from muster.train_job.output import base_paths

        paths = base_paths(self._environ)
        if not os.path.isdir(paths.base):
            return False
        report.reserve(paths)
        return report.write(paths, ending.outcome, self._output.masker)

    def say(self, ending: Ending, written: bool) -> None:
        from muster.train_job.last_words import say_last

        leads = self._cluster is None or self._cluster.is_leader
        say_last(self._output, ending, self._output.masker, leads, written)
