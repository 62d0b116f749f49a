"""Names the ranks that hold up a job, and why: the leader looks once a minute.

Each time at the rates of steps. At when ranks came to their calls, for which they stand still for
0.1 s where torch has recorded them, only if steps have become slower, else after up to SKIPS times.

Where the pace of the ranks says that some are slower, one of them and one of the others are looked
at for some seconds; then all are asked again. Only what both times say is said.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.observe.looks import RankLook, Usage
from muster.run.observe.pace import StepPace, pace_of
from muster.run.observe.query import PACE, PROBE, STATE, Collector
from muster.run.observe.rounds import Rounds
from muster.run.observe.wording import BUSY_SHARE, main_thread, of_ranks, place, where
from muster.types.steps import Log

if TYPE_CHECKING:
    from muster.run.observe.observer import ObserverHost

SKIPS = 9
SLOWER = 0.95  # of the rate at the look before
LOOKS = 20  # at the suspect
LOOK_EVERY_S = 0.25  # one takes about as long
LOOK_LIMIT_S = 20.0  # of all of them, on a busy machine
LOADER_FRAMES = 10  # from a loader's own down to the system call
ENOUGH = 5  # looks, to say anything
LEAST_SHARE = 0.03  # of the time: less is no cause
MAJOR_FAULTS_PER_S = 20.0
_DISK = ("reading /", "writing /", "opening /", "waiting until /", "waiting for a lock")
_LOADERS = ("torch/utils/data/dataloader.py", "multiprocessing/queues.py", "python/data/ops/")


class Stragglers:
    """The watch of the leader. `pace`: of the last look, for people who ask; None before."""

    def __init__(
        self,
        loop: Loop,
        rounds: Rounds,
        recorder: Recorder,
        log: Log,
        owner: ObserverHost,
        every_s: float,
    ) -> None:
        self.pace: StepPace | None = None
        self._loop = loop
        self._rounds = rounds
        self._recorder = recorder
        self._log = log
        self._owner = owner
        self._every_s = every_s
        self._busy = False
        self._skips = self._skipped = 0
        self._rate = 0.0  # steps a second, when ranks were last asked when they came

    def begin(self) -> None:
        if self._every_s:
            self._loop.after(self._every_s, self._look)

    def _look(self) -> None:
        self._loop.after(self._every_s, self._look)
        if self._owner.is_at_work() and not self._busy:
            self._busy = True
            self._rounds.ask(STATE, (), self._compare)

    def _compare(self, found: Collector) -> None:
        rates = [rate for one in found.looks if (rate := one.answer.rate)]
        rate = median(rates) if rates else 0.0
        if rate < SLOWER * self._rate:
            self._skips = 0
        if not rate or self._skipped < self._skips:
            self._skipped += 1
            self._busy = False
            return
        self._skips, self._skipped = min(2 * self._skips + 1, SKIPS), 0
        self._rate = rate
        self._rounds.ask(PACE, (), self._suspect)

    def _suspect(self, found: Collector) -> None:
        self.pace = pace = pace_of(found.looks)
        if pace is None:
            self._skips = 0
        if pace is None or not pace.slow:
            self._busy = False
            return
        usual = min(
            (rank for rank in pace.own if rank not in pace.slow),
            key=lambda rank: abs(pace.own[rank].median_s - pace.others_s),
        )
        self._probe(pace, usual, [], time.monotonic() + LOOK_LIMIT_S)

    def _probe(self, pace: StepPace, usual: int, seen: list[RankLook], by_s: float) -> None:
        """Looks at the slowest rank and at a usual one, again and again."""
        if not self._owner.is_at_work():
            self._busy = False
        elif len(seen) < 2 * LOOKS and time.monotonic() < by_s:

            def noted(found: Collector) -> None:
                seen.extend(found.looks)
                self._loop.after(LOOK_EVERY_S, lambda: self._probe(pace, usual, seen, by_s))

            self._rounds.ask(PROBE, (pace.slow[0], usual), noted)
        else:
            self._rounds.ask(PACE, (), lambda found: self._sure(pace, seen, found))

    def _sure(self, before: StepPace, seen: Sequence[RankLook], found: Collector) -> None:
        self._busy = False
        pace = pace_of(found.looks)
        if pace is None or pace.slow != before.slow:
            self._skips = 0  # not sure yet: again at the next look
        if pace is None or before.slow[0] not in pace.slow or not self._owner.is_at_work():
            return
        self.pace = pace
        rank = before.slow[0]
        slow = [rank, *(one for one in pace.slow if one in before.slow and one != rank)]
        hosts = {one.rank: one.host for one in found.looks}
        usages = {one.rank: one.usage for one in found.looks}
        why = cause(rank, pace, usages, [one for one in seen if one.rank == rank],
                    [one for one in seen if one.rank != rank])  # fmt: skip
        text = sentence(slow, hosts[rank], pace, why)
        self._log("observe", text, level="WARNING")
        own, factor = pace.own[rank], round(pace.factor, 3)
        times = {"own_s": round(own.median_s, 6), "own_p95_s": round(own.p95_s, 6)}
        self._recorder.event("straggler", rank, factor=factor, cause=why, text=text, **times)


def sentence(slow: Sequence[int], host: str, pace: StepPace, why: str) -> str:
    """One line. The first of `slow` is the one that was looked at."""
    own = pace.own[slow[0]]
    also = f", and {of_ranks(slow[1:])}" if slow[1:] else ""
    return (
        f"straggler: rank {slow[0]} ({host}){also}: its own time of a step is "
        f"{_time(own.median_s)} (95th percentile {_time(own.p95_s)}), others' "
        f"{_time(pace.others_s)}; steps take {pace.factor:.2f} times as long because of it; "
        f"{why or 'the cause was not seen'}"
    )


def cause(
    rank: int,
    pace: StepPace,
    usages: Mapping[int, Usage | None],
    seen: Sequence[RankLook],
    others: Sequence[RankLook],
) -> str:
    """What a slow rank has more of than the others, by at least half of what it is slower; "" where
    nothing is. `seen`: looks at it; `others`: at the same time, at a usual rank."""
    enough = max(LEAST_SHARE, pace.share / 2)
    own = usages.get(rank)
    rest = [one for other, one in usages.items() if one is not None and other not in pace.slow]
    if own is not None and own.over_s > 0 and rest:

        def beyond(field: str) -> float:
            mine, usual = getattr(own, field), [getattr(one, field) / one.over_s for one in rest
                                                if getattr(one, field) is not None]  # fmt: skip
            return 0.0 if mine is None else mine / own.over_s - median(usual or [0.0])

        # who is held up by a limit waits for a processor, too
        share, delay = beyond("throttled_s"), beyond("run_delay_s")
        if share >= enough or (delay >= enough and share >= delay / 3):
            return f"throttled: the CPU limit of its container held it up ({_percent(share)})"
        if delay >= enough:
            return (f"run delay: its threads waited for a processor ({_percent(delay)}): too many "
                    "threads or processes there")  # fmt: skip
        if beyond("major_faults") >= MAJOR_FAULTS_PER_S:
            return "memory: it waits for pages that come from a disk: it has too little"
    if len(seen) < ENOUGH or len(others) < ENOUGH:
        return ""
    mine, usual = _kinds(seen), _kinds(others)
    for kind, words in _KINDS.items():
        if mine[kind] / len(seen) - usual[kind] / len(others) >= enough and mine[kind] > 1:
            return words + _at([one for one in seen if _kind(one) == kind])
    others_alike = all(mine[one] <= usual[one] for one in _KINDS if one != _OWN)
    if others_alike and mine[_OWN] >= len(seen) / 2:  # others poll while they wait
        return _KINDS[_OWN] + _at([one for one in seen if _kind(one) == _OWN])
    return ""


_OWN = "computes"
_KINDS = {
    "loader": "data loader: it waits for its next batch",
    "disk": "disk: it waits for files",
    "sleeps": "it sleeps",
    _OWN: "its own computation",
}


def _kinds(seen: Sequence[RankLook]) -> Counter[str]:
    return Counter(map(_kind, seen))


def _kind(look: RankLook) -> str:
    thread, process = main_thread(look), look.process
    innermost = thread.frames[-LOADER_FRAMES:] if thread is not None else ()
    if any(part in frame.file for frame in innermost for part in _LOADERS):
        return "loader"
    if process.state == "D" or process.waits_for.startswith(_DISK):
        return "disk"
    if process.waits_for == "sleeping":
        return "sleeps"
    return _OWN if process.state == "R" or process.cpu_share >= BUSY_SHARE else "waits"


def _at(seen: Sequence[RankLook]) -> str:
    """The line at which it was seen most often."""
    places = Counter(place(frame) for one in seen if (frame := where(one)) is not None)
    files = Counter(w.partition(" /")[2] for one in seen if (w := one.process.waits_for))
    named = [f"at {places.most_common(1)[0][0]}"] if places else []
    named += [f"on /{file}" for file, _ in files.most_common(1) if file]
    return f" ({', '.join(named)})" if named else ""


def _percent(share: float) -> str:
    return f"{100 * min(1.0, share):.0f} % of the time"


def _time(time_s: float) -> str:
    return f"{time_s:.2f} s" if time_s >= 1 else f"{1000 * time_s:.3g} ms"
