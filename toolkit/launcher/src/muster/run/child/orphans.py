"""Which processes of the job are left once the shims are gone."""

from __future__ import annotations

import os
from collections.abc import Collection

from muster.plan.launchplan import RUN_ID
from muster.run.base.reaper import session_of
from muster.run.child.shim_handle import state_of

LOOKS = 10


class Orphans:
    """Finds processes that lost their shim. Make it at the start: every process below this one by
    then, but for `shims`, is foreign.

    Any later descendant came from a shim's tree, unless this process also adopts orphans of others:
    as PID 1, or when it had foreign children. Then a process belongs to the job if its environment
    has the run's mark, or if it is in the session of a script whose shim was killed.
    """

    def __init__(self, shims: Collection[int]) -> None:
        self._mark = os.urandom(8).hex()
        self._foreign = frozenset(_children()) - frozenset(shims)
        self._adopts = os.getpid() == 1 or bool(self._foreign)

    @property
    def mark(self) -> dict[str, str]:
        """The variable that is to be in the environment of every process of the job."""
        return {RUN_ID: self._mark}

    def find(self, sessions: Collection[int]) -> list[int]:
        """Live processes of the job below this one; cheap when there is none at all.

        `sessions`: those of scripts that lost their shim.
        """
        for _ in range(LOOKS):
            found = self._below()
            live = [
                p for p in found if self._is_of_job(p, sessions) and state_of(p) not in ("", "Z")
            ]
            if live or self._foreign.union(found).issuperset(_children()):
                return live
        return live  # a parent that forks and ends moves its child up while we look

    def _below(self) -> list[int]:
        from muster.run.child.rank_shim import descendants

        roots = [pid for pid in _children() if pid not in self._foreign]
        return [*roots, *descendants(*roots)] if roots else []

    def _is_of_job(self, pid: int, sessions: Collection[int]) -> bool:
        return not self._adopts or session_of(pid) in sessions or self._carries_mark(pid)

    def _carries_mark(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return f"{RUN_ID}={self._mark}".encode() in file.read().split(b"\0")
        except OSError:
            return False


def _children() -> list[int]:
    """The direct children of this process, whichever thread started them."""
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:  # a kernel without that file, or a thread that just ended: look at all
        from muster.run.child.rank_shim import parents

        return [pid for pid, parent in parents().items() if parent == os.getpid()]
    return found
