"""A supervised process of this host that is no rank: its launcher, launch daemon, or a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from muster.plan.launchplan import Command
from muster.run.base.evidence import Watcher, last_traceback
from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.base.shortage import not_started
from muster.run.channel.messages import HostError, shortened
from muster.run.child.rank import FAILURE_TEXT_BYTES
from muster.run.child.shim_handle import ShimHandle
from muster.types.errors import InternalError, LaunchError
from muster.types.outcome import signal_name
from muster.types.shown import Shown

LAST_WORDS_S = 0.5  # how long output may still arrive after an end before the end is reported


class AuxiliaryProcess:
    """A supervised process that is no rank.

    `ended` is called once it has ended and its last words, which say why, are there or were waited
    for. `kind`: what it is to a reader ("launcher", "server").
    """

    def __init__(
        self,
        name: str,
        kind: str,
        command: Command,
        host: str,
        ended: Callable[[AuxiliaryProcess], None],
    ) -> None:
        self.name = name
        self.command = command
        self.handle: ShimHandle | None = None
        self.reported = False
        self.ended_s = 0.0
        self.what = f"the {kind} {os.path.basename(command.argv[0])}"
        if kind == "server":
            self.what = f"the server {name}"
        self._kind = kind
        self._host = host
        self._ended = ended
        self._words = Watcher()
        self._open_streams = 0

    @property
    def runs(self) -> bool:
        return self.handle is not None and not self.handle.ended

    @property
    def status(self) -> int:
        """The exit code, or minus the signal; 0 while it runs."""
        return (self.handle.status or 0) if self.handle is not None else 0

    def begin(
        self,
        handle: ShimHandle,
        out_fd: int,
        err_fd: int,
        loop: Loop,
        pump: Pump,
        recorder: Recorder,
        shown: Shown,
        shim_variable: str = "",
    ) -> None:
        """Its shim is there: starts it. `shim_variable`: for one whose children are shims."""
        self.handle = handle
        mark = f"[{self._host}:{self.name}] ".encode() if shown.prefix else b""
        off_screen = shown.quiet and self._kind != "server"

        def stream_ended() -> None:
            loop.post(self._count_stream)

        for fd, target in ((out_fd, 1), (err_fd, 2)):
            self._open_streams += 1
            keep = recorder.stream_log(f"{self.name}.log")
            shown_at, is_stderr = -1 if off_screen else target, target == 2
            pump.add(
                Stream(fd, shown_at, mark, self._words, keep, stream_ended, is_stderr=is_stderr)
            )
        environ = dict(self.command.env)
        if shim_variable:
            environ["MUSTER_SHIM"] = shim_variable
        handle.start(self.command.argv, environ, self.command.cwd)

    def changed(self, loop: Loop) -> None:
        """It started or ended, or its shim is gone."""
        if self.handle is None or not self.handle.ended:
            return
        self.ended_s = self.ended_s or time.monotonic()
        if self._open_streams:
            loop.after(LAST_WORDS_S, self._report)
        else:
            self._report()

    def kill(self) -> None:
        if self.handle is not None:
            self.handle.kill()

    def release(self) -> None:
        """Ends it and all that is left below it."""
        if self.handle is not None:
            self.handle.release()

    def words(self, mask: Callable[[str], str]) -> str:
        """The last that it wrote to its error stream, without secrets."""
        return shortened(mask(last_traceback(self._words.tail)), FAILURE_TEXT_BYTES, keep_end=True)

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

    def _count_stream(self) -> None:
        self._open_streams -= 1
        if not self._open_streams and not self.runs:
            self._report()

    def _report(self) -> None:
        if not self.reported:
            self.reported = True
            self._ended(self)


def launch_error(what: str, fix: str, detail: str = "") -> HostError:
    return HostError(LaunchError.__name__, LaunchError.exit_code, what, fix, detail)


def lost_status(who: str) -> HostError:
    """A status that was taken elsewhere reads as success: it is a defect instead."""
    what = f"the exit status of {who} was taken by another part of this process"
    fix = "report this with the log: it is a defect of muster, or of what was put into its process"
    return HostError(InternalError.__name__, InternalError.exit_code, what, fix, "")
