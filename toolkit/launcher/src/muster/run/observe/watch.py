"""Notices by itself that ranks stand still: looks every few seconds, one roll call when it is due.

Every host watches its own ranks and tells the leader, which asks all of them. Idleness counts only
when every host with ranks says so, by a look that is fresh.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError, shortened
from muster.run.observe import answers
from muster.run.observe.local_looks import LocalLooks
from muster.run.observe.query import ROLL, STATE, Collector, one_of_each_kind
from muster.run.observe.rollcall import WORK, RollVerdict
from muster.run.observe.rounds import Rounds
from muster.run.observe.stall import CONFIRM_S, IDLE, WAIT, StallClock
from muster.run.observe.wording import is_gone
from muster.types.deadlines import Deadlines
from muster.types.errors import HangError
from muster.types.steps import Log

if TYPE_CHECKING:
    from muster.run.observe.observer import ObserverHost

STACKS = "stacks"
DETAIL_BYTES = 8192
FIX = "the stacks are below (docs/how-to/symptoms/it-hangs.md); MUSTER_HANG_S ended the job"


class StallWatch:
    """The watch of one host; on the leader it also calls the roll."""

    def __init__(
        self,
        loop: Loop,
        looks: LocalLooks,
        rounds: Rounds,
        recorder: Recorder,
        log: Log,
        owner: ObserverHost,
        deadlines: Deadlines,
        leads: bool,
        tell: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._looks = looks
        self._rounds = rounds
        self._recorder = recorder
        self._log = log
        self._owner = owner
        self._deadlines = deadlines
        self._leads = leads
        self._tell = tell
        self._clock = StallClock(deadlines, time.monotonic())
        self._calling = False
        self._kept = 0
        self._others_s = time.monotonic()  # when a rank elsewhere was last known to do something

    def begin(self) -> None:
        if self._clock.every_s:
            self._loop.after(self._clock.every_s, self._look)

    def told(self) -> None:
        """A host says that ranks of it have waited for long."""
        self._call(WAIT)

    def _look(self) -> None:
        self._loop.after(self._clock.every_s, self._look)
        if self._clock.looks(time.monotonic()):
            self._looks.was_away()
        if self._owner.is_at_work() and not self._calling:
            self._looks.calls(self._waited)
            if not self._looks.has_ranks:
                self._others_idle()
            elif self._deadlines.hang_s or self._looks.silent_s() > self._clock.every_s:
                self._looks.measure(self._measured)

    def _waited(self, age_s: float) -> None:
        """How long a rank of this host has waited in one call."""
        counted_s = self._clock.counted(age_s, time.monotonic())
        if self._clock.is_due(WAIT, counted_s):
            self._clock.called(WAIT, counted_s)
            if self._leads:
                self._call(WAIT)
            else:
                self._clock.says(WAIT, age_s)
                self._tell()

    def _measured(self) -> None:
        self._idle(min(self._looks.idle_s.values(), default=0.0))

    def _others_idle(self) -> None:
        """This host's ranks are through, and tell nothing of the others'."""
        self._idle(time.monotonic() - self._others_s)

    def _idle(self, time_s: float) -> None:
        """Since when nothing is known to have been done."""
        idle_s = self._clock.counted(time_s, time.monotonic())
        if self._leads and self._clock.is_due(IDLE, idle_s) and not self._calling:
            self._clock.called(IDLE, idle_s)
            self._calling = True
            self._rounds.ask(STATE, (), self._all_idle)

    def _all_idle(self, found: Collector) -> None:
        """Every host has looked at its ranks just now."""
        self._calling = False
        idle_s = 0.0 if found.silent() else min(found.idle_s.values(), default=0.0)
        self._others_s = time.monotonic() - idle_s
        if not self._looks.has_ranks:  # the question was due before anything was known
            self._clock.called(IDLE, idle_s)
        if self._idle_s(found) > 0:
            self._call(IDLE)

    def _idle_s(self, found: Collector) -> float:
        """Since when all ranks of the job are idle and silent, by all hosts; else 0."""
        if found.silent() or not found.idle_s:
            return 0.0
        idle_s = self._clock.counted(min(found.idle_s.values()), time.monotonic())
        first = self._deadlines.stall_idle_s
        enough = (first and idle_s >= first) or self._clock.may_hang(idle_s)
        return idle_s if enough else 0.0

    # the leader's roll call

    def _call(self, kind: str) -> None:
        if self._leads and not self._calling and self._owner.is_at_work():
            self._calling = True
            self._rounds.ask(ROLL, (), lambda found: self._called(kind, found))

    def _called(self, kind: str, found: Collector) -> None:
        self._calling = False
        now = time.monotonic()
        verdict = answers.verdict_of(found)
        meant = verdict.guilty or verdict.waiting
        gone = {look.rank: math.inf for look in found.looks if is_gone(look)}  # comes no more
        idle = {**found.idle_s, **gone}
        guilty_s = min((idle.get(rank, 0.0) for rank in meant), default=0.0)
        idle_s = self._idle_s(found) if kind == IDLE else guilty_s
        waited_s = self._clock.counted(verdict.waited_s, now)
        time_s = idle_s if kind == IDLE else waited_s
        if not self._owner.is_at_work() or verdict.kind == WORK:
            return
        if kind == WAIT and not verdict.waiting:
            return
        if self._clock.says(kind, time_s):
            self._say(kind, verdict, found)
        if self._clock.hangs(kind, verdict, idle_s, now):
            self._end(verdict, found)
        elif self._clock.doubts:
            self._loop.after(CONFIRM_S, lambda: self._call(kind))

    def _say(self, kind: str, verdict: RollVerdict, found: Collector) -> None:
        self._log("observe", f"roll call: {verdict.sentence}", level="WARNING")
        self._recorder.event(
            "stall",
            verdict=verdict.sentence,
            ranks=list(verdict.guilty[:64]),
            waited_s=round(verdict.waited_s, 1),
        )
        self._keep(f"stall-{kind}", self._answer(verdict, found))

    def _end(self, verdict: RollVerdict, found: Collector) -> None:
        text = answers.as_text(self._answer(verdict, found))
        detail = shortened(text, DETAIL_BYTES)
        message = shortened(verdict.sentence, DETAIL_BYTES // 4)
        self._owner.job_hangs(
            HostError(HangError.__name__, HangError.exit_code, message, FIX, detail)
        )

    def _answer(self, verdict: RollVerdict, found: Collector) -> dict[str, Any]:
        shown = {*one_of_each_kind(found.looks), *verdict.guilty[:8]}
        looks = [look for look in found.looks if look.rank in shown]
        return answers.stacks_answer(verdict, found.looks, looks, found.silent())

    def _keep(self, reason: str, answer: dict[str, Any]) -> None:
        """The stacks, as a file of the record: from a thread, as a disk may hang."""
        if not self._recorder.folder:
            return
        self._kept += 1
        name = f"{self._kept:03}-{reason}.txt"
        path = os.path.join(self._recorder.folder, STACKS, name)
        self._recorder.event("stacks", file=f"{STACKS}/{name}", reason=reason)
        writer = partial(_write, path, answers.as_text(answer))
        try:
            threading.Thread(target=writer, name="stacks", daemon=True).start()
        except RuntimeError:
            pass  # no thread can be had: the sentence stands in the log


def _write(path: str, text: str) -> None:
    """On its own thread: a disk may hang, and no job waits for these words."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        pass  # the record is not worth the job
