"""A supervised process of this host that is no rank: its launcher, launch daemon, or a server."""

from __future__ import annotations

import os
from collections.abc import Callable

from muster.plan.launchplan import Command
from muster.run.base.evidence import last_traceback
from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.base.shortage import not_started
from muster.run.channel.messages import HostError, shortened
from muster.run.child.child import Child
from muster.run.child.rank import FAILURE_TEXT_BYTES
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import Owner, ShimPool
from muster.types.errors import InternalError, LaunchError
from muster.types.outcome import signal_name
from muster.types.shown import Shown
from muster.types.values import NamedTuple

SERVER = "server"


class Surrounding(NamedTuple):
    """What launchers and servers of a host are started and judged with.

    `owner`: of their shims. `over`: whether the job ends anyway. `started`: called when one runs.
    `report`: receives errors. `mask`: hides secrets.
    """

    host: str
    loop: Loop
    pool: ShimPool
    pump: Pump
    recorder: Recorder
    shown: Shown
    owner: Owner
    over: Callable[[], bool]
    started: Callable[[], None]
    report: Callable[[HostError], None]
    mask: Callable[[str], str]


class AuxiliaryProcess(Child):
    """A supervised process that is no rank: a launcher, a launch daemon or a server.

    `ended` is called once it has ended and its last words, which say why, are there or were waited
    for. `kind`: what it is to a reader ("launcher", "server"). Raises LaunchError when a fork
    fails.
    """

    def __init__(
        self,
        around: Surrounding,
        name: str,
        kind: str,
        command: Command,
        ended: Callable[[AuxiliaryProcess], None],
    ) -> None:
        is_server = kind == SERVER
        program = name if is_server else os.path.basename(command.argv[0])
        super().__init__(around.loop, f"the {kind} {program}", drain_s=None)
        self.name = name
        self.role = f"{SERVER}:{name}" if is_server else name
        self._around = around
        self._is_server = is_server
        self._command = command
        self._ended = ended
        around.pool.spawn(self.role, command.env, around.owner)

    def start(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
        """Its shim is there: starts it. The children of a launcher are shims."""
        around, shown = self._around, self._around.shown
        mark = f"[{around.host}:{self.name}] ".encode() if shown.prefix else b""
        off_screen = shown.quiet and not self._is_server
        streams = []
        for fd, target in ((out_fd, 1), (err_fd, 2)):
            keep = around.recorder.stream_log(f"{self.name}.log")
            at, is_err = -1 if off_screen else target, target == 2
            one = Stream(fd, at, mark, self.watcher, keep, self.stream_ended, is_stderr=is_err)
            streams.append(one)
        environ = dict(self._command.env)
        if not self._is_server:
            environ["MUSTER_SHIM"] = around.pool.variable
        self.begin(handle, around.pump, streams, self._command.argv, environ, self._command.cwd)

    def on_start(self) -> None:
        self._around.started()

    def on_last_words(self) -> None:
        self._ended(self)

    def words(self) -> str:
        """The last that it wrote to its error stream, without secrets."""
        return shortened(
            self._around.mask(last_traceback(self.watcher.tail)), FAILURE_TEXT_BYTES, keep_end=True
        )

    def never_ran(self) -> HostError | None:
        """Why it could not even be started, or None when it could."""
        return never_ran(self, f"{self.what} on {self._around.host}")

    def how_it_ended(self) -> str:
        """`the launcher mpirun exited with 3`."""
        if self.handle is not None and self.handle.failure:
            return f"{self.what} could not be started: {self.handle.failure}"
        if self.status < 0:
            return f"{self.what} was killed by {signal_name(-self.status)}"
        return f"{self.what} exited with {self.status}"


def never_ran(child: Child, who: str) -> HostError | None:
    """What kept it from running or took its status, and is not its own fault; None for nothing."""
    handle = child.handle
    if handle is None or not (handle.lost or handle.lacked):
        return None
    if handle.lost:
        return lost_status(who)
    error = not_started(who, handle.failed_errno)
    return launch_error(error.message, error.fix)


def launch_error(what: str, fix: str, detail: str = "") -> HostError:
    return HostError(LaunchError.__name__, LaunchError.exit_code, what, fix, detail)


def lost_status(who: str) -> HostError:
    """A status that was taken elsewhere reads as success: it is a defect instead."""
    what = f"the exit status of {who} was taken by another part of this process"
    fix = "report this with the log: it is a defect of muster, or of what was put into its process"
    return HostError(InternalError.__name__, InternalError.exit_code, what, fix, "")
