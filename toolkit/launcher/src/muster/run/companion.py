"""A supervised process of this host that is no rank: its launcher, launch daemon, or a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from muster.plan.launchplan import Command
from muster.run.evidence import Watcher, last_traceback
from muster.run.logs import Pump, Stream
from muster.run.loop import Loop
from muster.run.messages import Trouble, shortened
from muster.run.rank import FAILURE_TEXT_BYTES
from muster.run.record import Recorder
from muster.run.shortage import not_started
from muster.run.verdict import signal_name
from muster.run.wrapped import Wrapped
from muster.spec.errors import InternalError, LaunchError
from muster.spec.shown import Shown

LAST_WORDS_S = 0.5  # how long the output of what has ended may still come before it is told


class Companion:
    """`ended` is called once it has ended and its last words, which say why, are there or were
    waited for. `kind`: what it is to a reader ("launcher", "server")."""

    def __init__(
        self, name: str, kind: str, command: Command, host: str, ended: Callable[[Companion], None]
    ) -> None:
        self.name = name
        self.command = command
        self.wrapped: Wrapped | None = None
        self.told = False
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
        return self.wrapped is not None and not self.wrapped.ended

    @property
    def status(self) -> int:
        """The exit code, or minus the signal; 0 while it runs."""
        return (self.wrapped.status or 0) if self.wrapped is not None else 0

    def begin(
        self,
        wrapped: Wrapped,
        out_fd: int,
        err_fd: int,
        loop: Loop,
        pump: Pump,
        recorder: Recorder,
        shown: Shown,
        shim_variable: str = "",
    ) -> None:
        """Its shim is there: starts it. `shim_variable`: for one whose children are shims."""
        self.wrapped = wrapped
        mark = f"[{self._host}:{self.name}] ".encode() if shown.prefix else b""
        off_screen = shown.quiet and self._kind != "server"

        def stream_ended() -> None:
            loop.post(self._count_stream)

        for fd, target in ((out_fd, 1), (err_fd, 2)):
            self._open_streams += 1
            keep = recorder.keeper(f"{self.name}.log")
            shown_at, is_stderr = -1 if off_screen else target, target == 2
            pump.add(
                Stream(fd, shown_at, mark, self._words, keep, stream_ended, is_stderr=is_stderr)
            )
        environ = dict(self.command.env)
        if shim_variable:
            environ["MUSTER_SHIM"] = shim_variable
        wrapped.start(self.command.argv, environ, self.command.cwd)

    def changed(self, loop: Loop) -> None:
        """It started or ended, or its shim is gone."""
        if self.wrapped is None or not self.wrapped.ended:
            return
        self.ended_s = self.ended_s or time.monotonic()
        if self._open_streams:
            loop.after(LAST_WORDS_S, self._tell)
        else:
            self._tell()

    def kill(self) -> None:
        if self.wrapped is not None:
            self.wrapped.kill()

    def release(self) -> None:
        """Ends it and all that is left below it."""
        if self.wrapped is not None:
            self.wrapped.release()

    def words(self, mask: Callable[[str], str]) -> str:
        """The last that it wrote to its error stream, without secrets."""
        return shortened(mask(last_traceback(self._words.tail)), FAILURE_TEXT_BYTES, keep_end=True)

    def never_ran(self) -> Trouble | None:
        """Why it could not even be started, or None when it could."""
        wrapped = self.wrapped
        if wrapped is None:
            return None
        if wrapped.lost:
            return lost_status(f"{self.what} on {self._host}")
        if wrapped.lacked:
            error = not_started(f"{self.what} on {self._host}", wrapped.failed_errno)
            return launch_trouble(error.message, error.fix)
        return None

    def how_it_ended(self) -> str:
        """`the launcher mpirun exited with 3`."""
        if self.wrapped is not None and self.wrapped.failure:
            return f"{self.what} could not be started: {self.wrapped.failure}"
        if self.status < 0:
            return f"{self.what} was killed by {signal_name(-self.status)}"
        return f"{self.what} exited with {self.status}"

    def _count_stream(self) -> None:
        self._open_streams -= 1
        if not self._open_streams and not self.runs:
            self._tell()

    def _tell(self) -> None:
        if not self.told:
            self.told = True
            self._ended(self)


def launch_trouble(what: str, fix: str, detail: str = "") -> Trouble:
    return Trouble(LaunchError.__name__, LaunchError.exit_code, what, fix, detail)


def lost_status(who: str) -> Trouble:
    """A status that somebody else took reads as success: it is a defect instead (protocol.md 5)."""
    what = f"the exit status of {who} was taken by another part of this process"
    fix = "report this with the log: it is a defect of muster, or of what was put into its process"
    return Trouble(InternalError.__name__, InternalError.exit_code, what, fix, "")
