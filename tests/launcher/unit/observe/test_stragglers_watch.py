"""How often the leader asks ranks when they came to their calls: it costs them time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.run.observe.looks import RankLook
from muster.run.observe.query import PACE, STATE
from muster.run.observe.stragglers import SKIPS, Stragglers
from tests.launcher.support.looks import look


class Job:
    """A job of two ranks whose looks come at once; `rate`: steps a second."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.asked: list[str] = []
        self.looks: list[RankLook] = []
        self._next: list[Callable[[], None]] = []
        it: Any = self  # the loop, the rounds, the recorder, and the owner
        Stragglers(it, it, it, it.log, it, every_s=60.0).begin()

    def after(self, _delay_s: float, then: Callable[[], None]) -> None:
        self._next.append(then)

    def ask(self, what: str, _ranks: object, done: Callable[[Any], None]) -> None:
        self.asked.append(what)
        made = look(0)
        self.looks = [made._replace(answer=made.answer._replace(rate=self.rate))]
        done(self)

    def log(self, *_words: object, **_facts: object) -> None:
        raise AssertionError("nobody is slow")

    def is_at_work(self) -> bool:
        return True

    def minutes(self, count: int) -> int:
        """How often arrivals were asked for meanwhile."""
        before = self.asked.count(PACE)
        for _ in range(count):
            self._next.pop()()
        return self.asked.count(PACE) - before


def test_ranks_that_report_no_steps_are_not_asked() -> None:
    job = Job(None)
    assert job.minutes(20) == 0
    assert set(job.asked) == {STATE}


def test_ranks_of_a_steady_job_are_asked_less_and_less(monkeypatch: Any) -> None:
    monkeypatch.setattr("muster.run.observe.stragglers.pace_of", clean)
    job = Job(10.0)
    assert job.minutes(1) == 1
    job.minutes(40)
    assert job.minutes(10 * (SKIPS + 1)) == 10


def test_steps_that_become_slower_are_looked_at_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("muster.run.observe.stragglers.pace_of", clean)
    job = Job(10.0)
    job.minutes(40)
    job.rate = 9.0
    assert job.minutes(1) == 1


def test_what_is_not_known_yet_is_asked_for_again() -> None:
    job = Job(10.0)
    assert job.minutes(5) == 5


def clean(_looks: object) -> object:
    class Pace:
        slow = ()

    return Pace
