"""Which process the kernel killed for memory: its counter is the container's and names none.

The counter is looked at every second. Of a process that was alive and not about to die when the
counter had risen, it did not count the end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from muster.run.base.loop import Loop
from muster.types.values import NamedTuple

LOOK_S = 1.0
_LATE_S = 2.5  # how long after an end the counter may be looked at
_AFTER_S = 0.5  # how long a shell lives on whose program was killed
_RECENT_S = 60.0
_EVENTS = 16


class Memory(NamedTuple):
    """The kernel's counters of this container's memory.

    `kills`: processes of this container that the kernel has killed for memory so far, None when
    unknown; `limit_bytes`: the container's, None without one.
    """

    kills: Callable[[], int | None] = lambda: None
    limit_bytes: Callable[[], int | None] = lambda: None


class _Kill(NamedTuple):
    seen_s: float
    dying: frozenset[int]


class KillWatch:
    """Notes which processes the kernel kills for memory.

    `pids`: of the processes that run now.
    """

    def __init__(self, memory: Memory, pids: Callable[[], Iterable[int]]) -> None:
        self._memory = memory
        self._pids = pids
        self._count: int | None = None
        self._kills: deque[_Kill] = deque(maxlen=_EVENTS)

    def begin(self, loop: Loop, over: Callable[[], bool]) -> None:
        """Looks every second from now on until it is over."""
        if not over():
            self.look()
            loop.after(LOOK_S, lambda: self.begin(loop, over))

    def look(self) -> None:
        """Notes a kill since the last look."""
        count = self._memory.kills()
        before, self._count = self._count, count
        if count is None or before is None or count <= before:
            return
        from muster.run.base.procfs import is_dying  # few jobs need it

        dying = frozenset(pid for pid in self._pids() if is_dying(pid))
        self._kills.append(_Kill(time.monotonic(), dying))

    def killed(self, pid: int, ended_s: float) -> str:
        """Says that the kernel ended this process for memory, "" when it did not."""
        self.look()
        if not any(
            pid in kill.dying or -_AFTER_S < kill.seen_s - ended_s < _LATE_S for kill in self._kills
        ):
            return ""
        limit = self._memory.limit_bytes()
        if limit is None:
            return "killed by the kernel: the machine has no memory left"
        return f"killed by the kernel: container memory limit of {limit >> 20} MiB reached"

    def another(self, ended_s: float, recent: bool) -> str:
        """Says that it killed some process of this container before, "" when it did not.
        `recent`: shortly before."""
        self.look()
        before = [kill for kill in self._kills if kill.seen_s < ended_s + _LATE_S]
        ago_s = max(0.0, ended_s - before[-1].seen_s) if before else 0.0
        if not before or (recent and ago_s > _RECENT_S):
            return ""
        limit = self._memory.limit_bytes()
        size = f" (container memory limit of {limit >> 20} MiB)" if limit else ""
        return (
            f"the kernel killed another process of this container for memory {ago_s:.0f} s before"
            f"{size}"
        )
