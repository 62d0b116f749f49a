"""What starts the rank shims of this host: its launcher or launch daemon, and what its end means.

A launcher never decides an outcome: when it ends because of a rank, only the rank is reported.
Promises: F17.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.plan.launchplan import Command, Daemon, Launcher, LaunchPlan, WorkEnds
from muster.run.channel.messages import HostError
from muster.run.child.auxiliary import AuxiliaryProcess, Surrounding, launch_error
from muster.run.child.rank import Rank
from muster.run.child.rank_shim import SHARED
from muster.types.errors import LaunchError
from muster.types.outcome import said_code

if TYPE_CHECKING:
    from muster.run.child.ranks import HostRanks

ROLE = "launcher"
SETTLE_S = 1.0  # how long ranks may take to say why their launcher gave up


class Launching:
    """The launcher or launch daemon of this host, and what its end means."""

    def __init__(self, around: Surrounding, ranks: HostRanks) -> None:
        self._around = around
        self._ranks = ranks
        self._plan: LaunchPlan | None = None
        self._at_start: Mapping[str, str] = {}
        self.auxiliary: AuxiliaryProcess | None = None
        self.shared: Mapping[str, str] = {}  # variables of ranks that share a folder in memory

    def start(self, plan: LaunchPlan, at_start: Mapping[str, str]) -> None:
        """Starts the launcher, if the plan has one here. `at_start`: variables of every process.
        Raises LaunchError when a fork fails."""
        self._plan, self._at_start = plan, at_start
        if isinstance(plan.starter, Launcher):
            self._start("launcher", plan.starter.command)

    def start_daemon(self, command: Command) -> None:
        """The leader's launcher asked for this host's part. Raises LaunchError, also when that
        was asked for before."""
        if self.auxiliary is not None:
            raise LaunchError(
                f"a second launch daemon was asked for on {self._around.host}",
                "a launch daemon is started once in a job; look at what else runs there",
            )
        if not self._around.over():
            self._start("launch daemon", command)

    def _start(self, kind: str, command: Command) -> None:
        """Starts it with folders of the job's own, and makes those that its ranks will share."""
        assert self._plan is not None and self._plan.launched is not None
        folders, names = self._around.pool.scratch, self._plan.launched.scratch
        own = {name: folders.files() for name in names.launcher}
        self.shared = {name: folders.memory() for name in names.ranks}
        if self.shared:  # should this process be killed, the launcher's shim removes it
            own[os.fsdecode(SHARED)] = folders.memory()
        command = command.with_variables({**self._at_start, **own})
        self.auxiliary = AuxiliaryProcess(self._around, ROLE, kind, command, self._ended)

    @property
    def runs(self) -> bool:
        return self.auxiliary is not None and self.auxiliary.runs

    @property
    def works_on(self) -> bool:
        """Whether its work goes on after its ranks, and its own end counts."""
        return self._plan is not None and self._plan.ends.work_ends is WorkEnds.WITH_LAUNCHER

    @property
    def has_unreported_end(self) -> bool:
        return self.auxiliary is not None and not self.auxiliary.reported

    def kill(self) -> None:
        if self.auxiliary is not None:
            self.auxiliary.kill()

    def release(self) -> None:
        """Ends it and all that is left below it."""
        if self.auxiliary is not None:
            self.auxiliary.release()

    def hold_back(self) -> None:
        """The job failed: one that works on after its ranks would take their end for success, and
        another would only take its time."""
        if self.works_on or (self._plan and self._plan.ends.kill_launcher_on_failure):
            self.release()

    def refuses(self, rank: Rank, environ: Mapping[str, str]) -> bool:
        """Whether another world was started than was planned (never a silent other size)."""
        assert self._plan is not None
        if self._plan.launched is None:
            return False
        names = self._plan.launched.names
        started = environ.get(names.rank), environ.get(names.world_size)
        planned = str(rank.slot.rank), str(self._plan.world_size)
        if started == planned:
            return False
        self._around.report(
            launch_error(
                f"the launcher started rank {started[0]} of {started[1]} where rank {planned[0]} "
                f"of {planned[1]} was planned",
                "look for variables that change the launcher, such as PET_* or OMPI_MCA_*",
            )
        )
        return True

    def _ended(self, launcher: AuxiliaryProcess) -> None:
        """One that ends before its ranks have is itself a failure, but for one that gives up
        because of a rank, whose own failure is about to be reported. A launch daemon may end badly
        when its ranks have: those of other hosts lose it."""
        if self._around.over():
            return
        if self._ranks.all_ended and not (launcher.status and self._counts):
            self._ranks.launcher_gone()
        elif launcher.status < 0 or not self._ranks.all_ran:
            self._judge(launcher)
        else:  # one that ended well saw no cause, and of daemons elsewhere one may be the cause
            knows = launcher.status and not self._asks_for_daemons
            settle_s = SETTLE_S if knows else 2 * SETTLE_S
            self._around.loop.after(settle_s, lambda: self._judge(launcher))

    @property
    def _counts(self) -> bool:
        """Whether a bad end counts although no rank runs here any more: ranks of other hosts
        need mpirun and every launch daemon."""
        is_daemon = self._plan is not None and isinstance(self._plan.starter, Daemon)
        return self.works_on or is_daemon or self._asks_for_daemons

    @property
    def _asks_for_daemons(self) -> bool:
        starter = self._plan.starter if self._plan is not None else None
        return isinstance(starter, Launcher) and bool(starter.daemon_hosts)

    def _judge(self, launcher: AuxiliaryProcess) -> None:
        if self._around.over():
            return
        host_error = launcher.never_ran()
        if host_error is None:
            how, words = launcher.how_it_ended(), launcher.words()
            if self._ranks.all_ran:
                after = self._ranks.all_ended and not self._ranks.lost_something
                when = "after its ranks" if after else "while its ranks ran"
                what = f"{how} {when} (on {self._around.host})"
                code = said_code(launcher.status)
                host_error = HostError("UserScriptError", code, what, "see its lines below", words)
            else:
                what = f"{how} before all ranks ran (on {self._around.host})"
                host_error = launch_error(what, "see its lines below", words)
        self._around.report(host_error)
