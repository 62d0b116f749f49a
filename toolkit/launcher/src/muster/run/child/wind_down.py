"""Ends ranks that are not needed any more: rank 0 has ended well and was the one that led.

A TensorFlow 2 worker serves its chief for ever, so somebody has to end it; a worker of a script
that trains by itself, or uploads what it made, works on and must not be cut off. What a rank does
decides. It does nothing when, for some time, its whole process tree takes next to no
processor time and moves next to no bytes, has no connection to anywhere but the job's hosts, no
thread of it is seen running or waiting for a disk, and the main thread of every process waits for
another thread or for a child.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from muster.run.base.loop import Loop
from muster.run.base.procfs import is_busy, moved_bytes, processor_s
from muster.run.base.sockets import connected_elsewhere
from muster.run.child.rank import Rank
from muster.run.child.rank_shim import descendants
from muster.types.values import NamedTuple

LOOK_S = 2.0  # between two looks at most
LOOKS = 25  # in the time that a rank must be idle for
IDLE_SHARE = 0.03  # of one processor: less is the ticking of timers
IDLE_BYTES_PER_S = 1 << 14  # less is threads that wake each other
REMIND_S = 60.0


class IdleRanks:
    """Ends idle ranks after rank 0.

    `ranks`: each is ended as soon as it has done nothing for `idle_s` (0: never); those that are
    not started yet when they are. `group`: signals go to the whole process group. `hosts`:
    addresses of the job. `over`: whether the job ends otherwise, and this with it. `say`: takes a
    line for the log. It looks on its own thread: processes and descriptors may be many.
    """

    def __init__(
        self,
        loop: Loop,
        ranks: Sequence[Rank],
        group: bool,
        idle_s: float,
        grace_s: float,
        hosts: Collection[str],
        over: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._watched = [Watched(rank, idle_s, hosts) for rank in ranks]
        self._group = group
        self._idle_s = idle_s
        self._grace_s = grace_s  # from SIGTERM to SIGKILL
        self._over = over
        self._say = say

    def begin(self) -> None:
        """Looks now and again until all have ended."""
        try:
            threading.Thread(target=self._watch, name="wind-down", daemon=True).start()
        except RuntimeError:  # the limit of processes counts threads too: ranks that end make room
            if not self._over():
                self._loop.after(LOOK_S, self.begin)

    def _watch(self) -> None:
        every_s = min(LOOK_S, max(0.1, self._idle_s / LOOKS)) if self._idle_s else LOOK_S
        while not self._over():
            left = [one for one in self._watched if not (one.rank.ended_s or one.rank.gone)]
            if not left:
                return
            for one in left:
                one.look(time.monotonic())
            self._loop.post(partial(self._act, left))
            time.sleep(every_s)

    def _act(self, left: Sequence[Watched]) -> None:
        """What follows for each, on the loop's thread."""
        now = time.monotonic()
        for one in left:
            rank, handle = one.rank, one.rank.handle
            if handle is None or not handle.pid or rank.ended_s or rank.gone or self._over():
                continue
            if rank.wound_down:
                if now >= (rank.signalled_s or now) + self._grace_s:
                    handle.kill()
            elif one.is_idle(now):
                self._say(f"rank {rank.slot.rank} does nothing since rank 0 has ended: it ends now")
                rank.wound_down, rank.signalled_s = True, now
                handle.signal(signal.SIGTERM, self._group)
            elif now >= one.remind_s:
                one.remind_s = now + REMIND_S
                since = f"{now - one.began_s:.0f} s after rank 0 has ended"
                self._say(f"rank {rank.slot.rank} works on, {since}: {one.why}")


class Watched:
    """What one rank has done since it was looked at first. `why`: what it was seen doing last."""

    def __init__(self, rank: Rank, idle_s: float, hosts: Collection[str]) -> None:
        self.rank = rank
        self.began_s = time.monotonic()
        self.remind_s = self.began_s + REMIND_S
        self.why = "it was just looked at"
        self._idle_s = idle_s
        self._hosts = hosts
        self._since_s = -1.0  # when it was last seen doing anything
        self._looked_s = -1.0
        self._used = Used(0.0, 0)

    def is_idle(self, now: float) -> bool:
        """Whether it was seen doing nothing for long enough, and that not long ago."""
        fresh = now - self._looked_s < self._idle_s
        idle = self._looked_s - self._since_s >= self._idle_s
        return self._idle_s > 0 and self._since_s >= 0 and fresh and idle

    def look(self, now: float) -> None:
        handle = self.rank.handle
        if handle is None or not handle.pid:
            return
        # below its shim, where what it let go of is too
        alone = [] if handle.connected else [handle.pid]
        tree = [*alone, *descendants(handle.shim_pid if handle.connected else handle.pid)]
        used = Used(sum(map(processor_s, tree)), sum(map(moved_bytes, tree)))
        why = self._work(tree, used)
        self._looked_s = now
        if why:
            self.why, self._since_s, self._used = why, now, used

    def _work(self, tree: Sequence[int], used: Used) -> str:
        """What shows that the tree is at work, or "". A part of it may have ended and taken its
        numbers along: then they are less."""
        if self._since_s < 0:
            return self.why
        if used.processor_s - self._used.processor_s > IDLE_SHARE * self._idle_s:
            return "it uses processor time"
        if not 0 <= used.moved_bytes - self._used.moved_bytes <= IDLE_BYTES_PER_S * self._idle_s:
            return "it reads or writes"
        busy = next((pid for pid in tree if is_busy(pid)), 0)
        if busy:
            return f"process {busy} runs, or waits for something but its own threads and children"
        peer = next(filter(None, (connected_elsewhere(pid, self._hosts) for pid in tree)), "")
        return f"it is connected to {peer}" if peer else ""


class Used(NamedTuple):
    """What a process tree has used so far."""

    processor_s: float
    moved_bytes: int
