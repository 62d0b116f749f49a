"""The end of ranks that nobody needs any more: rank 0 has ended well and was the one that led.

A TensorFlow 2 worker serves its chief for ever, so somebody has to end it; a worker of a script
that trains by itself works on and must not be cut off. What a rank does tells them apart. It does
nothing when, for some time, its whole process tree takes next to no processor time, no thread of it
is seen running or waiting for a disk, and the main thread of every process waits for another thread
or for a child: so one that sleeps, uploads or waits for an answer is at work.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from muster.run.loop import Loop
from muster.run.rank import Rank
from muster.run.rank_shim import descendants

LOOK_S = 0.2
IDLE_SHARE = 0.03  # of one processor: less is the ticking of timers
REMIND_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class WindDown:
    """Ends `ranks`, each as soon as it has done nothing for `idle_s`; those that are not started
    yet when they are. `group`: signals go to the whole process group. `over`: whether the job
    ends otherwise, and this with it. `say`: takes a line for the log."""

    def __init__(
        self,
        loop: Loop,
        ranks: Sequence[Rank],
        group: bool,
        idle_s: float,
        grace_s: float,
        over: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._watched = [_Watched(rank) for rank in ranks]
        self._group = group
        self._idle_s = idle_s
        self._grace_s = grace_s  # from SIGTERM to SIGKILL
        self._over = over
        self._say = say

    def begin(self) -> None:
        """Looks now and again until all have ended."""
        left = [one for one in self._watched if not one.rank.ended_s and not one.rank.gone]
        if self._over() or not left:
            return
        now = time.monotonic()
        for one in left:
            self._look_at(one, now)
        self._loop.after(LOOK_S, self.begin)

    def _look_at(self, one: _Watched, now: float) -> None:
        rank, wrapped = one.rank, one.rank.wrapped
        if wrapped is None or not wrapped.pid:
            return
        if rank.wound_down:
            if now >= (rank.signalled_s or now) + self._grace_s:
                wrapped.kill()
            return
        if one.is_idle(now, self._idle_s):
            self._say(f"rank {rank.slot.rank} does nothing since rank 0 has ended: it ends now")
            rank.wound_down, rank.signalled_s = True, now
            wrapped.signal(signal.SIGTERM, self._group)
        elif now >= one.remind_s:
            one.remind_s = now + REMIND_S
            since = now - one.began_s
            self._say(f"rank {rank.slot.rank} works on, {since:.0f} s after rank 0 has ended")


class _Watched:
    """What one rank has done since it was looked at first."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.began_s = time.monotonic()
        self.remind_s = self.began_s + REMIND_S
        self._since_s = 0.0
        self._used_s = -1.0  # by then

    def is_idle(self, now: float, idle_s: float) -> bool:
        assert self.rank.wrapped is not None
        wrapped = self.rank.wrapped
        # below its shim, where what it let go of is too
        alone = [] if wrapped.connected else [wrapped.pid]
        tree = [*alone, *descendants(wrapped.shim_pid if wrapped.connected else wrapped.pid)]
        used = sum(map(processor_s, tree))
        fresh = self._used_s < 0
        if fresh or used - self._used_s > IDLE_SHARE * idle_s or any(map(is_busy, tree)):
            self._since_s, self._used_s = now, used
            return False
        return now - self._since_s >= idle_s


def processor_s(pid: int) -> float:
    """Processor time that a process and those of its children that ended have taken."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return 0.0
    return sum(map(int, stat[stat.rindex(b")") + 2 :].split()[11:15])) / _TICKS


def is_busy(pid: int) -> bool:
    """Whether a thread of the process runs, wants to, or waits for a disk (on a crowded machine
    that is work although it takes no time), or its main thread waits for anything from outside."""
    if not _waits_inside(pid):
        return True
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_state(pid, thread) in b"RD" for thread in threads)


def _waits_inside(pid: int) -> bool:
    """Whether the main thread waits for another thread or for a child, as the kernel says; also
    when it does not say."""
    try:
        with open(f"/proc/{pid}/wchan", "rb") as file:
            where = file.read()
    except OSError:
        return True
    return where in (b"", b"0") or where.startswith((b"futex", b"do_wait"))


def _state(pid: int, thread: str) -> bytes:
    try:
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return b"-"
    return stat[stat.rindex(b")") + 2 :][:1]
