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
from muster.types.errors import InternalError, LaunchError
from muster.types.outcome import signal_name
from muster.types.shown import Shown


class AuxiliaryProcess(Child):
    """A supervised process that is no rank: a launcher, a launch daemon or a server.

    `ended` is called once it has ended and its last words, which say why, are there or were waited
    for. `kind`: what it is to a reader ("launcher", "server").
    """

    def __init__(
        self,
        loop: Loop,
        name: str,
        kind: str,
        command: Command,
        host: str,
        ended: Callable[[AuxiliaryProcess], None],
    ) -> None:
        program = name if kind == "server" else os.path.basename(command.argv[0])
        super().__init__(loop, f"the {kind} {program}", drain_s=None)
        self.name = name
        self.command = command
        self.started: Callable[[], None] = lambda: None  # called when it runs
        self._kind = kind
        self._host = host
        self._ended = ended

    def start(
        self,
        handle: ShimHandle,
        out_fd: int,
        err_fd: int,
        pump: Pump,
        recorder: Recorder,
        shown: Shown,
        shim_variable: str = "",
    ) -> None:
        """Its shim is there: starts it. `shim_variable`: for one whose children are shims."""
        mark = f"[{self._host}:{self.name}] ".encode() if shown.prefix else b""
        off_screen = shown.quiet and self._kind != "server"
        streams = []
        for fd, target in ((out_fd, 1), (err_fd, 2)):
            keep = recorder.stream_log(f"{self.name}.log")
            at, is_err = -1 if off_screen else target, target == 2
            one = Stream(fd, at, mark, self.watcher, keep, self.stream_ended, is_stderr=is_err)
            streams.append(one)
        environ = dict(self.command.env)
        if shim_variable:
            environ["MUSTER_SHIM"] = shim_variable
        self.begin(handle, pump, streams, self.command.argv, environ, self.command.cwd)

    def on_start(self) -> None:
        self.started()

    def on_last_words(self) -> None:
        self._ended(self)

    def words(self, mask: Callable[[str], str]) -> str:
        """The last that it wrote to its error stream, without secrets."""
        return shortened(mask(last_traceback(self.watcher.tail)), FAILURE_TEXT_BYTES, keep_end=True)

    def never_ran(self) -> HostError | None:
        """Why it could not even be started, or None when it could."""
        handle = self.handle
        if handle is None:
            return None
        if handle.lost:
            return lost_status(f"{self.what} on {self._host}")
        if handle.lacked:
            error = not_started(f"{self.what} on {self._host}", handle.failed_errno)
            return launch_error(error.message, error.fix)
        return None

    def how_it_ended(self) -> str:
        """`the launcher mpirun exited with 3`."""
        if self.handle is not None and self.handle.failure:
            return f"{self.what} could not be started: {self.handle.failure}"
        if self.status < 0:
            return f"{self.what} was killed by {signal_name(-self.status)}"
        return f"{self.what} exited with {self.status}"


def launch_error(what: str, fix: str, detail: str = "") -> HostError:
    return HostError(LaunchError.__name__, LaunchError.exit_code, what, fix, detail)


def lost_status(who: str) -> HostError:
    """A status that was taken elsewhere reads as success: it is a defect instead."""
    what = f"the exit status of {who} was taken by another part of this process"
    fix = "report this with the log: it is a defect of muster, or of what was put into its process"
    return HostError(InternalError.__name__, InternalError.exit_code, what, fix, "")
