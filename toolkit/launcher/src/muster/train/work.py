"""The work of the other layers on one host: stage the code, plan, check ports, write the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from muster.contract import report
from muster.run.base.background import BackgroundCall
from muster.run.base.shortage import PROCESSES
from muster.stage.patience import Patience
from muster.train.network_identity import NetworkIdentity, say_if_key_is_open, warn_of_init
from muster.train.output import say_what_is_missing
from muster.train.staging import facts_of, prepare, stage
from muster.types.job import Job, Staged
from muster.types.machine import HostFacts
from muster.types.outcome import Succeeded
from muster.types.run_files import record_folder
from muster.version import __version__

if TYPE_CHECKING:
    from muster.plan.launchplan import LaunchPlan
    from muster.run.job.context import Ending
    from muster.run.job.supervisor import Output
    from muster.types.steps import StepRunner

TIDY_S = 1.0
FLUSH_S = 1.0


class JobWork:
    """The work of a valid request. Satisfies `run.job.context.Work`.

    From the moment it is made it prepares the job's folders, on its own thread. `folder`: a private
    one, which is removed when the job ends, however it ends.
    """

    def __init__(self, job: Job, output: Output, network: NetworkIdentity, folder: str) -> None:
        self._job = job
        self._network = network
        self._output = output
        self._log = output.console
        self._masker = output.masker
        self._staged: Staged | None = None
        self._staging = False
        self._folder = folder
        self._began = time.time()
        self._prepared = BackgroundCall("prepare", lambda: prepare(job, self._log, folder))
        for warning in job.warnings:
            self._log("read", warning, level="WARNING")
        warn_of_init(self._log)
        say_if_key_is_open(job, self._log)

    def stage(self, run: StepRunner, leader_address: str) -> HostFacts:
        """See `Work`. Whether the job can write where it leaves its work is reported here, so that
        all hosts hear of it."""
        with Patience(self._job.paths.base, self._log):
            self._prepared.result()
        self._staging = True
        self._staged, machine = stage(self._job, run, self._log, self._folder)
        return facts_of(self._job, self._staged, machine, self._network, leader_address)

    def plan(self, facts: Sequence[HostFacts]) -> LaunchPlan:
        """See `Work`."""
        from muster.train.planning import plan_job, say_plan

        assert self._staged is not None
        plan = plan_job(self._job, facts, self._staged)
        say_plan(self._job, plan, self._log, self._masker.mask)
        return plan

    def at_start(self, plan: LaunchPlan) -> Mapping[str, str]:
        """See `Work`: where the facts of the run are for `muster.runtime`."""
        from muster.train.run_facts import write_facts

        record = record_folder(self._job)
        return write_facts(self._job, plan, self._began, self._folder, record)

    def check(self, plan: LaunchPlan) -> None:
        """See `Work`."""
        from muster.train.planning import check_ports

        check_ports(self._job, plan)

    def write(self, ending: Ending) -> bool:
        """See `Work`."""
        try:
            self._prepared.result()
        except Exception:  # ConfigError, or a defect of muster: either is the outcome already
            pass
        job = self._job
        written = report.write(job.paths, ending.outcome, self._masker)
        self._tidy()
        folder = record_folder(job)
        if folder and job.cluster.is_leader:
            from muster.train.summary import summary, write_summary

            problem = write_summary(folder, summary(job, ending, __version__), self._masker)
            if problem:
                self._log("record", f"no summary was written: {problem}", level="WARNING")
        if job.platform is not None and job.platform.metrics and ending.plan is not None:
            self._check_metrics(ending, ending.plan, folder)
        return written

    def say(self, ending: Ending, written: bool) -> None:
        """See `Work`."""
        from muster.train.last_words import say_last

        say_what_is_missing(self._output)
        say_last(self._output, ending, self._masker, self._job.cluster.is_leader, written)

    def _check_metrics(self, ending: Ending, plan: LaunchPlan, record: str) -> None:
        # of a job that failed something is more urgent; half a log shows nothing
        if isinstance(ending.outcome, Succeeded) and self._output.recorder.flush(FLUSH_S):
            from muster.train.metric_check import warnings_of

            for warning in warnings_of(self._job, plan, record):
                self._log("metrics", warning, level="WARNING")

    def _tidy(self) -> None:
        """Removes code that is there in part; a mount that hangs is left to itself, and all is left
        to the next start where no thread can be had for it."""
        if not self._staging or self._staged is not None:
            return
        from muster.stage.code.workspace import discard

        code = (self._job.paths.code,)
        tidying = threading.Thread(target=discard, args=code, name="tidy", daemon=True)
        try:
            tidying.start()
        except RuntimeError:
            left = "code that was fetched in part is left for the next start to remove"
            self._log("record", f"{left}: {PROCESSES.what}", level="WARNING")
            return
        tidying.join(TIDY_S)
