"""Looks at the ranks of this host: what their agents answer and what the kernel says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from muster.run.base import procfs
from muster.run.base.loop import Loop
from muster.run.child.rank import Rank
from muster.run.child.shim_handle import ShimHandle
from muster.run.observe import sampler
from muster.run.observe.looks import Answer, ProcessState, RankLook
from muster.run.observe.query import CALLS, PACE, PROBE, ROLL, STACKS, THREADS
from muster.run.observe.sampler import Subject
from muster.run.observe.wording import IDLE_SHARE
from muster.types.values import NamedTuple

if TYPE_CHECKING:
    from muster.run.observe.agent_link import AgentLink

AGENT_S = 1.2  # for a rank's agent: 0.5 s of silence, then its signal handler
WAITS = "waits"  # no question between hosts
LOOK_S = 2.0  # for all of a look; what has not come by then is unknown
NO_AGENT, UNKNOWN = Answer(how="none"), ProcessState(0, "?", "", 0.0)


IDLE_BYTES_PER_S = 4096  # what polling threads move counts for nothing


class _Activity(NamedTuple):
    """What the process tree of a rank had used so far, at `at_s`, but for what its agent moved:
    to be asked is no work."""

    at_s: float
    cpu_s: float
    moved_bytes: int


class LocalLooks:
    """Asks the ranks that `ranks()` gives, on the loop's thread; never blocks it.

    `idle_s`: since when each rank that runs has used no processor, moved no bytes and written
    nothing, as far as was looked: `measure` looks, and every look at processes.
    """

    def __init__(self, loop: Loop, host: str, ranks: Callable[[], Sequence[Rank]]) -> None:
        self._loop = loop
        self._host = host
        self._ranks = ranks
        self._link: AgentLink | None = _agent_link(loop, ranks)
        self._began_s = time.monotonic()
        self._active_s: dict[int, float] = {}  # when a rank was last seen at work
        self._used: Mapping[int, _Activity] = {}

    def close(self) -> None:
        self._link = None

    def look(
        self, what: str, ranks: Collection[int], done: Callable[[list[RankLook]], None]
    ) -> None:
        """Calls `done` once, with a look at every rank that is named, or at all of them."""
        chosen = [one for one in self._ranks() if not ranks or one.slot.rank in set(ranks)]
        look = _Look(self._loop, self._host, chosen, done)
        self._ask(what, chosen, look.answered)
        self._look_at_processes(chosen, look)

    def calls(self, done: Callable[[float], None]) -> None:
        """Calls `done` with how long a rank of this host has waited in one collective call."""

        def answered(answers: Mapping[int, Answer]) -> None:
            ages = [c.age_s for a in answers.values() for c in a.calls if c.running]
            done(max(ages, default=0.0))

        self._ask(WAITS, self._ranks(), answered)

    @property
    def has_ranks(self) -> bool:
        """Whether any rank of this host runs."""
        return any(rank.runs for rank in self._ranks())

    def silent_s(self) -> float:
        """Since when no rank of this host has written anything; 0 where none runs."""
        now = time.monotonic()
        return min((now - _heard_s(rank) for rank in self._ranks() if rank.runs), default=0.0)

    @property
    def idle_s(self) -> dict[int, float]:
        now = time.monotonic()
        return {
            rank.slot.rank: max(
                0.0, now - max(_heard_s(rank), self._active_s.get(rank.slot.rank, self._began_s))
            )
            for rank in self._ranks()
            if rank.runs
        }

    def subjects(self) -> list[Subject]:
        """The ranks that run, as samples are taken of them; from any thread."""
        return self._subjects(self._ranks())

    def measure(self, done: Callable[[], None]) -> None:
        """Looks at what they used since the last time, on a thread."""
        subjects = self._subjects(self._ranks())

        def run() -> None:
            used = _used(subjects, self._agents_bytes)
            self._loop.post(lambda: self._noted(used, done))

        self._start(run)

    def was_away(self) -> None:
        """This host was suspended: what was not seen does not count."""
        self._began_s = time.monotonic()
        self._active_s.clear()

    def _note(self, used: Mapping[int, _Activity]) -> None:
        """Compares with the time before: a sum over minutes would count what threads poll."""
        before, self._used = self._used, used
        for rank, now in used.items():
            if rank not in before or _works(before[rank], now):
                self._active_s[rank] = now.at_s

    def _ask(
        self, what: str, ranks: Sequence[Rank], done: Callable[[Mapping[int, Answer]], None]
    ) -> None:
        running = [rank.slot.rank for rank in ranks if rank.runs]
        if self._link is None or not running:
            done({})
            return
        from muster.run.observe.agent_link import Ask

        threads = what == THREADS
        asked = Ask(
            stacks=what in (ROLL, STACKS, THREADS, PROBE),
            all_threads=threads,
            calls=what in (CALLS, ROLL),
            arrivals=what == PACE,
            waits=what == WAITS,
            by_signal=what != PROBE,
        )
        self._link.ask(running, asked, AGENT_S, done)

    def _look_at_processes(self, ranks: Sequence[Rank], look: _Look) -> None:
        subjects, all_of_them = self._subjects(ranks), self._subjects(self._ranks())

        def run() -> None:
            found = sampler.look(subjects)
            used = _used(all_of_them, self._agents_bytes)
            self._loop.post(lambda: self._noted(used, lambda: look.seen(found)))

        if not subjects or not self._start(run):
            look.seen({})

    def _agents_bytes(self, rank: int) -> int:
        link = self._link
        return link.moved_bytes(rank) if link is not None else 0

    def _noted(self, used: Mapping[int, _Activity], then: Callable[[], None]) -> None:
        self._note(used)
        then()

    def _start(self, run: Callable[[], None]) -> bool:
        """On a thread, if one can be had; a defect there is raised on the loop's."""

        def guarded() -> None:
            try:
                run()
            except Exception as error:
                self._loop.post(partial(_raise, error))

        try:
            threading.Thread(target=guarded, name="look", daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _subjects(self, ranks: Sequence[Rank]) -> list[Subject]:
        found = []
        for rank in ranks:
            handle = rank.handle
            if rank.runs and handle is not None and handle.pid:
                shim = handle.shim_pid if handle.connected else 0
                found.append(Subject(rank.slot.rank, handle.pid, shim, _heard_s(rank)))
        return found


class _Look:
    """One look under way: it is over when both halves are there, or its time is."""

    def __init__(
        self, loop: Loop, host: str, ranks: Sequence[Rank], done: Callable[[list[RankLook]], None]
    ) -> None:
        self._host = host
        self._ranks = ranks
        self._done: Callable[[list[RankLook]], None] | None = done
        self._answers: Mapping[int, Answer] | None = None
        self._processes: Mapping[int, ProcessState] | None = None
        self._timer = loop.after(LOOK_S, self._finish)

    def answered(self, answers: Mapping[int, Answer]) -> None:
        self._answers = answers
        self._try()

    def seen(self, processes: Mapping[int, ProcessState]) -> None:
        self._processes = processes
        self._try()

    def _try(self) -> None:
        if self._answers is not None and self._processes is not None:
            self._timer.cancel()
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done([self._of(rank) for rank in self._ranks])

    def _of(self, rank: Rank) -> RankLook:
        number, handle = rank.slot.rank, rank.handle
        process = (self._processes or {}).get(number, UNKNOWN)
        if process.pid == 0 and handle is not None and handle.pid:
            process = process._replace(pid=handle.pid)
        ended = handle.status if handle is not None else None
        answer = (self._answers or {}).get(number, NO_AGENT)
        silent_s = max(0.0, time.monotonic() - _heard_s(rank)) if rank.began_s else 0.0
        return RankLook(number, self._host, process, silent_s, answer, ended)


def _heard_s(rank: Rank) -> float:
    """When the rank last wrote anything, or began."""
    return max(rank.began_s, rank.watcher.heard_s)


def _used(subjects: Sequence[Subject], agents_bytes: Callable[[int], int]) -> dict[int, _Activity]:
    """Of the tree of each rank, by the same reading as a sample's."""
    table = procfs.processes()
    below = procfs.trees(table, [one.shim_pid or one.pid for one in subjects])
    found = {}
    for one in subjects:
        pids = {one.pid, *below[one.shim_pid or one.pid]}
        alive = [table[pid] for pid in pids if pid in table]
        cpu_s = sum(stat.cpu_s + stat.children_cpu_s for stat in alive)
        moved = sum(map(procfs.moved_bytes, pids)) - agents_bytes(one.rank)
        found[one.rank] = _Activity(time.monotonic(), cpu_s, moved)
    return found


def _works(before: _Activity, now: _Activity) -> bool:
    """Whether that is more than what waiting threads use by polling. Trees shrink, too."""
    took_s = now.at_s - before.at_s
    worked = abs(now.cpu_s - before.cpu_s) > IDLE_SHARE * took_s + 0.02  # two ticks
    moved = abs(now.moved_bytes - before.moved_bytes) > IDLE_BYTES_PER_S * max(1.0, took_s)
    return worked or moved


def _raise(error: Exception) -> None:
    raise error


def _agent_link(loop: Loop, ranks: Callable[[], Sequence[Rank]]) -> AgentLink | None:
    """The agents in the ranks' Pythons; None in a build without them."""
    try:
        from muster.run.observe.agent_link import AgentLink
    except ImportError:
        return None

    def handle_of(number: int) -> ShimHandle | None:
        return next((one.handle for one in ranks() if one.slot.rank == number), None)

    return AgentLink(loop, handle_of)
