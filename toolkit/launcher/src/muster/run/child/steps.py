"""Children of the staging thread (installers), supervised like ranks. See `types.steps`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence

from muster.run.base.evidence import Watcher
from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.base.shortage import not_started
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import NEVER_STARTED, ShimPool
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
        step = _Step(argv, environ, cwd, show)
        self._loop.post(lambda: self._begin(step))
        step.done.wait()
        if step.error is not None:
            raise step.error
        if self._aborted or step.status is None:  # one that was killed has a status too by now
            raise StoppedError("stopped while the code was being prepared")
        return StepResult(step.status, step.watcher.tail.decode("utf-8", "replace"))

    def abort(self) -> None:
        """Ends what runs; the waiting thread gets StoppedError."""
        self._aborted = True
        for step in list(self._running.values()):
            if step.handle is not None:
                step.handle.kill()
            step.status = None
            step.done.set()

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> bool:
        """Whether the shim belongs to a step; if so, starts the step."""
        step = self._running.get(handle.role)
        if step is None:
            return False
        step.handle = handle
        if self._aborted:
            os.close(out_fd)
            os.close(err_fd)
            handle.release()
            return True
        for fd in (out_fd, err_fd):
            step.open_streams += 1
            target = 1 if fd == out_fd else 2
            # pip says its errors on both streams: both count for the last lines
            ended = self._stream_ended(step)
            keep = None if fd == err_fd else _Tail(step.watcher)
            if step.show:
                stream = Stream(fd, target, b"", step.watcher, keep, ended, step.masker.mask)
            else:
                stream = Stream(fd, -1, b"", None, _Tail(step.watcher), ended)
            self._pump.add(stream)
        handle.start(step.argv, step.environ, step.cwd)
        return True

    def changed(self, handle: ShimHandle) -> bool:
        """Whether the process belongs to a step; if so, notes its end."""
        step = self._running.get(handle.role)
        if step is None:
            return False
        if handle.ended or not handle.connected:
            step.status = handle.status if handle.ended else -9
            if handle.lacked:
                self._fail(step, not_started(step.argv[0], handle.failed_errno))
                return True
            if handle.failure:
                step.watcher.tail += handle.failure.encode()
            self._settle(step)
            self._loop.after(DRAIN_S, lambda: self._finish(step))
        return True

    def _begin(self, step: _Step) -> None:
        if self._aborted:
            step.done.set()
            return
        self._count += 1
        step.role = f"step:{self._count}"
        self._running[step.role] = step
        try:
            self._pool().spawn(step.role, step.environ)
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
        self._finish(step)

    def _stream_ended(self, step: _Step) -> Callable[[], None]:
        def ended() -> None:
            self._loop.post(lambda: self._one_stream_less(step))

        return ended

    def _one_stream_less(self, step: _Step) -> None:
        step.open_streams -= 1
        self._settle(step)

    def _settle(self, step: _Step) -> None:
        if step.status is not None and step.open_streams == 0:
            self._finish(step)

    def _finish(self, step: _Step) -> None:
        if self._running.pop(step.role, None) is not None:
            if step.handle is not None:
                step.handle.release()
            step.done.set()


class _Step:
    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, show: bool
    ) -> None:
        self.argv = argv
        self.environ = environ
        self.cwd = cwd
        self.show = show
        self.role = ""
        self.status: int | None = None
        self.error: LaunchError | None = None  # why it could not be started
        self.handle: ShimHandle | None = None
        self.watcher = Watcher()
        self.masker = Masker.of(environ)  # installers print the addresses of their indexes
        self.open_streams = 0
        self.done = threading.Event()


class _Tail:
    """Adds a stream's bytes to the last lines of a step."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __call__(self, data: bytes) -> None:
        self._watcher.feed(data, 0.0, True)
