"""Ends this host's processes once the outcome is known: none stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from muster.run.base.loop import Loop
from muster.run.base.reaper import Reaper
from muster.run.child.orphans import Orphans
from muster.run.child.rank_shim import end_tree, kill
from muster.run.child.ranks import HostRanks
from muster.run.child.shim_handle import state_of
from muster.run.child.shims import ShimPool
from muster.types.steps import Log

LAUNCHER_LEAVES_S = 2.0
SHIMS_LEAVE_S = 3.0  # then they are killed
CLEAN_UP_S = 4.0
STAGE_LEAVES_S = 1.0
POLL_S = 0.01


class Teardown:
    """Ends this host's processes once the outcome is known.

    `begin` releases the shims; `done` is called once, when no process is left or when that took too
    long. Call `look` whenever a process has ended.
    """

    def __init__(
        self,
        loop: Loop,
        pool: ShimPool,
        reaper: Reaper,
        orphans: Orphans,
        log: Log,
        done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._reaper = reaper
        self._orphans = orphans
        self._log = log
        self._done = done
        self._ranks: HostRanks | None = None  # once it has begun, until it is done
        self._staging: threading.Thread | None = None
        self._began_s = 0.0

    def begin(self, ranks: HostRanks, staging: threading.Thread | None, well: bool) -> None:
        """`staging`: it may still be removing its temporary files. `well`: the job succeeded."""
        self._ranks, self._staging = ranks, staging
        self._began_s = time.monotonic()
        if not well:
            ranks.launching.hold_back()
        ranks.release()
        self._pool.release_spare()
        if ranks.launching.runs:
            self._loop.after(LAUNCHER_LEAVES_S, ranks.launching.release)
        self._loop.after(SHIMS_LEAVE_S, self.look)
        self.look()

    def look(self) -> None:
        if self._ranks is None:
            return
        if not self._ranks.launching.runs:
            self._ranks.launching.release()
        self._reaper.look()
        waited = time.monotonic() - self._began_s
        if self._pool.shims and waited < SHIMS_LEAVE_S:
            return
        if self._staging is not None and self._staging.is_alive() and waited < STAGE_LEAVES_S:
            self._loop.after(POLL_S, self.look)
            return
        orphans = self._orphans.find(self._pool.sessions_without_shim())
        kill([*self._pool.shims, *orphans])
        if orphans and waited < CLEAN_UP_S:
            self._loop.after(POLL_S, self.look)
            return
        for pid in orphans:
            self._log("job", f"PID {pid} could not be ended: {_why(pid)}", level="WARNING")
        self._ranks = None
        self._done()

    def at_once(self) -> None:
        """Without the loop, which is what broke or is not to be trusted any more."""
        lost_shim = self._pool.sessions_without_shim()
        self._pool.close()  # shims that lose their supervisor kill their trees
        late_s = time.monotonic() + SHIMS_LEAVE_S

        def reap() -> bool:
            self._reaper.look()
            return bool(self._pool.shims or self._orphans.find(lost_shim))

        def left() -> list[int]:
            if self._pool.shims and time.monotonic() < late_s:
                return []
            return [*self._pool.shims, *self._orphans.find(lost_shim)]

        end_tree(reap, left, CLEAN_UP_S)
        self._pool.scratch.remove()  # what was still written to when it was removed first


def _why(pid: int) -> str:
    return "it is in uninterruptible sleep" if state_of(pid) == "D" else "it did not go"
