"""Shims that are stopped (SIGSTOP): they do not report what their scripts do or how they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from muster.run.base.loop import Loop
from muster.run.child.shim_handle import ShimHandle, state_of

LOOK_S = 5.0
NAMED_AFTER_S = 60.0
_STOPPED = ("T", "t")  # the second: by a debugger


class StoppedShims:
    """Names a shim of `shims()` once it has been stopped for `after_s`: by `say`, and in `notes`
    for the last lines as long as it is."""

    def __init__(
        self,
        loop: Loop,
        shims: Callable[[], Sequence[ShimHandle]],
        say: Callable[[str], None],
        after_s: float = NAMED_AFTER_S,
    ) -> None:
        self._loop = loop
        self._shims = shims
        self._say = say
        self._after_s = after_s
        self._since_s: dict[int, float] = {}  # pid of a stopped shim -> when it was seen first
        self._notes: dict[int, str] = {}

    def begin(self) -> None:
        """Looks now and again, as long as the loop runs."""
        now = time.monotonic()
        stopped = {one.shim_pid: one for one in self._shims() if self._is_stopped(one)}
        self._since_s = {pid: self._since_s.get(pid, now) for pid in stopped}
        self._notes = {pid: text for pid, text in self._notes.items() if pid in stopped}
        for pid, handle in stopped.items():
            if pid not in self._notes and now - self._since_s[pid] >= self._after_s:
                child = handle.child.what if handle.child is not None else handle.role
                what = f"the process above {child} (PID {pid}) is stopped"
                fix = f"continue it: kill -CONT {pid}"
                self._notes[pid] = f"{what}: its end cannot be heard of; {fix}"
                self._say(self._notes[pid])
        self._loop.after(min(LOOK_S, self._after_s / 4), self.begin)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes.values())

    @staticmethod
    def _is_stopped(handle: ShimHandle) -> bool:
        return handle.connected and not handle.ended and state_of(handle.shim_pid) in _STOPPED
