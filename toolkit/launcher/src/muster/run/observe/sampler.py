"""What the ranks of this host use: looked at every few seconds, from a thread of its own.

A sample is one event of the record per rank. Times that add up (`cpu_s`, `run_delay_s`,
`throttled_s`, `steal_s`) are sums: the first since the rank began, the others since the first look,
so that two samples tell what happened between them even if others were lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from muster.run.base import procfs
from muster.run.base.procfs import Stat
from muster.run.observe.looks import ProcessState, Usage
from muster.types.values import NamedTuple

FIRST_S = 0.5  # what has ended by then is not looked at
EVERY_S = 5.0
SHARE_S = 0.2  # over which a fresh look measures the use of processors
USAGE_S = 60.0  # over which `usage` tells
END_S = 0.5  # how long the end waits for the last sample


class Subject(NamedTuple):
    """A rank that is looked at: its process, the shim above it (0 where that is gone), and when it
    last wrote anything, or began, by the monotonic clock."""

    rank: int
    pid: int
    shim_pid: int
    heard_s: float


class Sample(NamedTuple):
    """One rank at one moment, as the event `sample` has it.

    `cpu_s`: processor time of its process tree, those that ended included; `run_delay_s`: how long
    threads of it waited for a processor; `memory_bytes`: resident, of the tree; `state`, `wchan`:
    of its own main thread; `silent_s`: since its last output; `throttled_s`: how long the
    container's CPU limit has held processes up, None where unknown; `steal_s`: processor time that
    other machines took from this one; `major_faults`: of its process tree.
    """

    pid: int
    cpu_s: float
    run_delay_s: float
    memory_bytes: int
    state: str
    wchan: str
    silent_s: float
    throttled_s: float | None
    steal_s: float
    major_faults: int = 0


class Emit(Protocol):
    """`Recorder.event`."""

    def __call__(self, kind: str, rank: int | None = None, **fields: object) -> None: ...


class Sampler:
    """Looks at the ranks of this host from `begin` to `end`.

    `subjects()`: those that run, asked for on the sampler's thread. `emit` takes the events, on
    that thread too. `throttled_s()`: the sum that the kernel counts for this container. A machine
    that has no thread left goes without samples, and a defect of a look ends them: `problem` says
    so, and the job goes on.
    """

    def __init__(
        self,
        subjects: Callable[[], Sequence[Subject]],
        emit: Emit,
        throttled_s: Callable[[], float | None] = lambda: None,
        every_s: float = EVERY_S,
        first_s: float = FIRST_S,
    ) -> None:
        self.problem = ""
        self.last: dict[int, Sample] = {}  # of each rank, also once it has ended
        self.peak_bytes: dict[int, int] = {}  # rank -> the most that its tree was seen to hold
        self._subjects = subjects
        self._emit = emit
        self._throttled_s = throttled_s
        self._every_s = every_s
        self._first_s = first_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._shims: dict[int, int] = {}  # rank -> PID
        self._delays: dict[int, _Sum] = {}
        self._at_first: tuple[float | None, float] | None = None
        self._kept: dict[int, deque[tuple[float, Sample]]] = {}  # the last ones, and when

    def begin(self) -> None:
        """Starts its thread; the first look is `first_s` later."""
        thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the limit of processes counts threads too
            self.problem = str(error)
            return
        self._thread = thread

    def end(self) -> None:
        """No more looks but a last one, if there were any; returns after at most END_S. Before the
        shims are let go: they know what ended ranks have used."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        try:
            wait_s = self._first_s
            while not self._over.wait(wait_s):
                self.sample()
                wait_s = self._every_s
            if self.last:
                self.sample()
                self._count_ended()
        except Exception as error:  # a defect here is not worth the job
            self.problem = f"{type(error).__name__}: {error}"

    def sample(self) -> None:
        """One look at all ranks, emitted."""
        subjects = self._subjects()
        if not subjects:
            return
        table, trees = _looked_at(subjects)
        throttled_s, steal_s = self._throttled_s(), procfs.steal_s()
        if self._at_first is None:
            self._at_first = throttled_s, steal_s
        throttled_0, steal_0 = self._at_first
        if throttled_s is not None:
            throttled_s = round(throttled_s - (throttled_0 or 0.0), 3)
        now = time.monotonic()
        for one in subjects:
            made = self._sample_of(one, trees[one.rank], table, now)
            made = made._replace(throttled_s=throttled_s, steal_s=round(steal_s - steal_0, 2))
            self.last[one.rank], self._shims[one.rank] = made, one.shim_pid
            peak = max(made.memory_bytes, procfs.peak_bytes(one.pid))
            self.peak_bytes[one.rank] = max(self.peak_bytes.get(one.rank, 0), peak)
            kept = self._kept.setdefault(one.rank, deque(maxlen=1 + int(USAGE_S / self._every_s)))
            kept.append((now, made))
            self._emit("sample", one.rank, **made._asdict())

    def usage(self, rank: int) -> Usage | None:
        """What held this rank up over the last USAGE_S; None before the second look. From any
        thread."""
        kept = list(self._kept.get(rank, ()))
        if len(kept) < 2:
            return None
        (at_0, first), (at_1, last) = kept[0], kept[-1]
        known = first.throttled_s is not None and last.throttled_s is not None
        throttled_s = (last.throttled_s or 0.0) - (first.throttled_s or 0.0) if known else None
        run_delay_s = max(0.0, last.run_delay_s - first.run_delay_s)
        faults = max(0, last.major_faults - first.major_faults)
        return Usage(at_1 - at_0, throttled_s, run_delay_s, faults)

    def _count_ended(self) -> None:
        """What ranks that have ended since their last sample used until then."""
        for rank, shim_pid in self._shims.items():
            shim, last = procfs.stat(shim_pid), self.last[rank]
            if shim is not None and shim.children_cpu_s > last.cpu_s:
                self.last[rank] = last._replace(cpu_s=round(shim.children_cpu_s, 2))

    def _sample_of(
        self, one: Subject, tree: Sequence[int], table: dict[int, Stat], now: float
    ) -> Sample:
        delays = self._delays.setdefault(one.rank, _Sum())
        delays.take({key: s for pid in tree for key, s in procfs.run_delays_s(pid).items()})
        own = table.get(one.pid)
        return Sample(
            pid=one.pid,
            cpu_s=round(_cpu_s(one.shim_pid, tree, table), 2),
            run_delay_s=round(delays.total, 3),
            memory_bytes=sum(table[pid].memory_bytes for pid in tree if pid in table),
            state=own.state if own is not None else "",
            wchan=procfs.wchan(one.pid),
            silent_s=round(max(0.0, now - one.heard_s), 1),
            throttled_s=None,
            steal_s=0.0,
            major_faults=sum(table[pid].major_faults for pid in tree if pid in table),
        )


class _Sum:
    """A sum of counters of threads that come and go and take theirs along."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._last: dict[int, float] = {}

    def take(self, now: dict[int, float]) -> None:
        for thread, value in self._last.items():
            if now.get(thread, 0.0) < value:  # it has ended; its number may be another's by now
                self._ended += value
        self._last = now

    @property
    def total(self) -> float:
        return self._ended + sum(self._last.values())


def look(subjects: Collection[Subject], over_s: float = SHARE_S) -> dict[int, ProcessState]:
    """Rank -> what its process does now. Takes `over_s`, in which the use of processors is
    measured, and a look into /proc before and after: call it on a thread that may wait."""
    began_s, before = time.monotonic(), _used(subjects, *_looked_at(subjects))
    time.sleep(over_s)
    table, trees = _looked_at(subjects)
    after = _used(subjects, table, trees)
    took_s = max(1e-3, time.monotonic() - began_s)
    return {
        one.rank: ProcessState(
            pid=one.pid,
            state=table[one.pid].state if one.pid in table else "",
            wchan=procfs.wchan(one.pid),
            cpu_share=round(max(0.0, after[one.rank] - before[one.rank]) / took_s, 3),
            waits_for=procfs.waits_for(one.pid),
        )
        for one in subjects
    }


def _looked_at(subjects: Collection[Subject]) -> tuple[dict[int, Stat], dict[int, list[int]]]:
    """All processes, and rank -> its process tree: what is below its shim, where what it let go
    of is too."""
    table = procfs.processes()
    roots = {one.rank: one.shim_pid or one.pid for one in subjects}
    below = procfs.trees(table, list(roots.values()))
    return table, {
        one.rank: [*([] if one.shim_pid else [one.pid]), *below[roots[one.rank]]]
        for one in subjects
    }


def _used(
    subjects: Collection[Subject], table: dict[int, Stat], trees: dict[int, list[int]]
) -> dict[int, float]:
    return {one.rank: _cpu_s(one.shim_pid, trees[one.rank], table) for one in subjects}


def _cpu_s(shim_pid: int, tree: Sequence[int], table: dict[int, Stat]) -> float:
    """Processor time of a tree; what ended below its shim without a parent left it to the shim."""
    ended = table[shim_pid].children_cpu_s if shim_pid in table else 0.0
    alive = (table[pid] for pid in tree if pid in table)
    return ended + sum(one.cpu_s + one.children_cpu_s for one in alive)
