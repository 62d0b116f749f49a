"""Children of the staging thread (installers), supervised like ranks. See `types.steps`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence

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

    def __init__(self, loop: Loop, pool: Callable[[], ShimPool], pump: Pump) -> None:
        self._loop = loop
        self._pool = pool
        self._pump = pump
        self._running: dict[str, _Step] = {}
        self._count = 0
        self._aborted = False

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, show: bool = True
    ) -> StepResult:
        """Runs one step to its end (called on the staging thread). See `StepRunner`."""
        step = _Step(self, self._loop, argv, environ, cwd, show)
        self._loop.post(lambda: self._begin(step))
        step.done.wait()
        if step.error is not None:
            raise step.error
        if self._aborted or step.result is None:  # one that was killed has a status too by now
            raise StoppedError("stopped while the code was being prepared")
        return StepResult(step.result, step.watcher.tail.decode("utf-8", "replace"))

    def abort(self) -> None:
        """Ends what runs; the waiting thread gets StoppedError."""
        self._aborted = True
        for step in list(self._running.values()):
            step.kill()
            step.done.set()

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> bool:
        """Whether the shim belongs to a step; if so, starts the step."""
        step = self._running.get(handle.role)
        if step is None:
            return False
        if self._aborted:
            turn_away(handle, out_fd, err_fd)
        else:
            step.start(handle, out_fd, err_fd, self._pump)
        return True

    def _begin(self, step: _Step) -> None:
        if self._aborted:
            step.done.set()
            return
        self._count += 1
        step.what = f"step:{self._count}"
        self._running[step.what] = step
        try:
            self._pool().spawn(step.what, step.environ)
        except LaunchError as error:
            self._fail(step, error)

    def exited_before_register(self, role: str) -> bool:
        """A shim ended before it registered: whether it was a step's, which fails now."""
        step = self._running.get(role)
        if step is not None:
            self._fail(step, LaunchError(*NEVER_STARTED))
        return step is not None

    def _fail(self, step: _Step, error: LaunchError) -> None:
        step.error = error
        self.finish(step)

    def finish(self, step: _Step) -> None:
        if self._running.pop(step.what, None) is not None:
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

    def start(self, handle: ShimHandle, out_fd: int, err_fd: int, pump: Pump) -> None:
        """Its shim is there: starts it."""

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
        self.begin(handle, pump, streams, self._argv, self.environ, self._cwd)

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
        self._steps.finish(self)
