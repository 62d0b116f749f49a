"""Children of the staging thread (installers), supervised like ranks. See `types.steps`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence

from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.base.shortage import not_started
from muster.run.child.child import Child
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import NEVER_STARTED, ShimPool, turn_away
from muster.types.errors import LaunchError, StoppedError
from muster.types.masking import Masker
from muster.types.steps import StepResult

DRAIN_S = 5.0


class Steps:
    """Runs steps for another thread: `__call__` there, everything else on the loop's thread."""

    def __init__(self, loop: Loop, pool: ShimPool, pump: Pump) -> None:
        self.pool = pool
        self.pump = pump
        self.aborted = False
        self._loop = loop
        self._running: set[_Step] = set()
        self._count = 0

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, show: bool = True
    ) -> StepResult:
        """Runs one step to its end (called on the staging thread). See `StepRunner`."""
        step = _Step(self, self._loop, argv, environ, cwd, show)
        self._loop.post(lambda: self._begin(step))
        step.done.wait()
        if step.error is not None:
            raise step.error
        if self.aborted or step.result is None:  # one that was killed has a status too by now
            raise StoppedError("stopped while the code was being prepared")
        return StepResult(step.result, step.watcher.tail.decode("utf-8", "replace"))

    def abort(self) -> None:
        """Ends what runs; the waiting thread gets StoppedError."""
        self.aborted = True
        for step in list(self._running):
            step.kill()
            step.done.set()

    def _begin(self, step: _Step) -> None:
        if self.aborted:
            step.done.set()
            return
        self._count += 1
        step.what = f"step:{self._count}"
        self._running.add(step)
        try:
            self.pool.spawn(step.what, step.environ, step)
        except LaunchError as error:
            step.fail(error)

    def ended(self, step: _Step) -> None:
        """Its result is there, or why there is none."""
        if step in self._running:
            self._running.discard(step)
            step.release()
            step.done.set()


class _Step(Child):
    """One step of staging."""

    def __init__(
        self,
        steps: Steps,
        loop: Loop,
        argv: Sequence[str],
        environ: Mapping[str, str],
        cwd: str,
        show: bool,
    ) -> None:
        super().__init__(loop, "", DRAIN_S)
        self.environ = environ
        self.result: int | None = None
        self.error: LaunchError | None = None  # why it could not be started
        self.done = threading.Event()
        self._steps = steps
        self._argv = argv
        self._cwd = cwd
        self._show = show
        self._masker = Masker.of(environ)  # installers print the addresses of their indexes

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
        """Its shim is there: starts it, unless all are ended."""
        if self._steps.aborted:
            turn_away(handle, out_fd, err_fd)
            return

        def tail(data: bytes) -> None:
            self.watcher.feed(data, 0.0, True)

        streams = []
        for fd, target in ((out_fd, 1), (err_fd, 2)):
            # pip says its errors on both streams: both count for the last lines
            ended = self.stream_ended
            if self._show:
                keep, mask = tail if target == 1 else None, self._masker.mask
                streams.append(Stream(fd, target, b"", self.watcher, keep, ended, mask))
            else:
                streams.append(Stream(fd, -1, b"", None, tail, ended))
        self.begin(handle, self._steps.pump, streams, self._argv, self.environ, self._cwd)

    def exited_before_register(self, _role: str) -> None:
        self.fail(LaunchError(*NEVER_STARTED))

    def fail(self, error: LaunchError) -> None:
        """It cannot be started."""
        self.error = error
        self._steps.ended(self)

    def on_lost_shim(self) -> None:
        self.note_end()

    def on_end(self) -> None:
        handle = self.handle
        assert handle is not None
        self.result = handle.status if handle.ended else -signal.SIGKILL
        if handle.lacked:
            self.error = not_started(self._argv[0], handle.failed_errno)
            self.finish()
        elif handle.failure:
            self.watcher.tail += handle.failure.encode()

    def drain(self) -> None:
        self.finish()  # its release kills what keeps its output open

    def on_gone(self) -> None:
        self._steps.ended(self)
