"""The one place that reaps the children of this process.

It looks before it takes: shims are taken by pid; a child of a library call (a probe's subprocess)
shares this session, belongs to that call and gets half a second to be taken by it;
whatever is left was adopted from a dead parent and is taken, because PID 1 and subreapers owe
that to the system.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from muster.run.base.loop import Loop

OWNER_GRACE_S = 0.5


class Reaper:
    """Reaps on every SIGCHLD. `shim_ended(pid)` and `orphan_ended(pid, status)` are called."""

    def __init__(
        self,
        loop: Loop,
        is_shim: Callable[[int], bool],
        shim_ended: Callable[[int], None],
        orphan_ended: Callable[[int, int], object],
    ) -> None:
        self._loop = loop
        self._is_shim = is_shim
        self._shim_ended = shim_ended
        self._orphan_ended = orphan_ended
        self._seen: dict[int, float] = {}

    def look(self) -> None:
        """Reaps shims and orphans that have ended."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            if self._is_shim(pid):
                self._take(pid)
                self._shim_ended(pid)
                continue
            if self._may_have_owner(pid):
                # It hides the children after it for so long: look again soon.
                self._loop.after(0.05, self.look)
                return
            self._seen.clear()
            status = self._take(pid)
            if status is not None:
                self._orphan_ended(pid, status)

    def _may_have_owner(self, pid: int) -> bool:
        shared = session_of(pid) == os.getsid(0)
        now = time.monotonic()
        self._seen = {pid: self._seen.get(pid, now)}  # one at a time: a pid may come again
        return shared and now - self._seen[pid] < OWNER_GRACE_S

    @staticmethod
    def _take(pid: int) -> int | None:
        try:
            _, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status)


def session_of(pid: int) -> int:
    """The session of a process, 0 when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def reap(pid: int, limit_s: float) -> None:
    """Takes the status of a child that was killed. One that does not end in time, in
    uninterruptible sleep as a rule, is left to the process that adopts it."""
    until = time.monotonic() + limit_s
    try:
        while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(0.0005)
    except ChildProcessError:
        pass  # SIGCHLD is ignored here: the kernel has reaped it
