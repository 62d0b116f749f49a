"""The loop as what observes sees it: a defect in there ends observing, and never a job."""

from __future__ import annotations

from collections.abc import Callable

from muster.run.base.loop import Loop, Timer


class GuardedLoop(Loop):
    """The supervisor's loop; every call that was asked for here is guarded. After the first error,
    which `failed` gets, and after `end`, nothing is called any more and nothing is watched."""

    def __init__(self, loop: Loop, failed: Callable[[Exception], None]) -> None:
        self._loop = loop
        self._failed = failed
        self._watched: dict[int, Callable[[int], None]] = {}
        self._over = False

    def watch(self, fd: int, handler: Callable[[int], None], write: bool = False) -> None:
        if not self._over:
            guarded = self._watched[fd] = lambda events: self.guard(lambda: handler(events))
            self._loop.watch(fd, guarded, write)

    def forget(self, fd: int, handler: Callable[[int], None] | None = None) -> None:
        guarded = self._watched.pop(fd, handler)
        if guarded is not None:  # else it is another's by now
            self._loop.forget(fd, guarded)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        return self._loop.after(delay_s, lambda: self.guard(call))

    def post(self, call: Callable[[], None]) -> None:
        self._loop.post(lambda: self.guard(call))

    def guard(self, call: Callable[[], None]) -> None:
        """Calls it, if nothing went wrong before."""
        if self._over:
            return
        try:
            call()
        except Exception as error:
            self.end()
            self._failed(error)

    def end(self) -> None:
        self._over = True
        for fd in list(self._watched):
            self.forget(fd)
