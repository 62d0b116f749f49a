"""When a roll call is due by itself, and when ranks that wait end a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.run.observe.looks import RankLook
from muster.run.observe.query import ROLL, Collector
from muster.run.observe.rollcall import RollVerdict
from muster.run.observe.stall import IDLE, WAIT, StallClock
from muster.run.observe.watch import StallWatch
from muster.types.deadlines import Deadlines
from tests.launcher.support.looks import call, look

STUCK = RollVerdict("waiting", "rank 1 ...", (1,), (0,), 100.0)


def clock(**limits: float) -> StallClock:
    return StallClock(Deadlines()._replace(**limits), 0.0)


def test_a_stall_is_said_at_its_limit_and_again_after_twice_the_time() -> None:
    made = clock(stall_wait_s=60)
    said = [
        time_s
        for time_s in range(0, 500, 5)
        if made.is_due(WAIT, time_s) and made.says(WAIT, time_s)
    ]
    assert said == [60, 120, 240, 480]


def test_a_roll_call_that_found_nothing_is_not_made_at_every_look() -> None:
    made, called = clock(stall_wait_s=60, hang_s=100), []
    for time_s in range(0, 500, 5):
        if made.is_due(WAIT, time_s):
            made.called(WAIT, time_s)
            called.append(time_s)
    assert called == [60, 90, 100, 150, 225, 340]
    assert not made.is_due(WAIT, 2)
    assert made.is_due(WAIT, 60)


def test_another_wait_counts_from_its_own_beginning() -> None:
    made = clock(stall_wait_s=60)
    assert made.says(WAIT, 200)
    assert not made.is_due(WAIT, 3)
    assert made.is_due(WAIT, 60)


def test_the_time_while_the_host_was_suspended_does_not_count() -> None:
    made = clock(stall_wait_s=60)
    for now in range(5, 50, 5):
        assert not made.looks(now)
    assert made.looks(1000)
    assert made.counted(990, 1010) == 10
    assert not made.is_due(WAIT, made.counted(990, 1010))


def test_nothing_is_looked_at_where_all_limits_are_off() -> None:
    assert clock(stall_wait_s=0, stall_idle_s=0).every_s == 0
    assert not clock(stall_wait_s=0, stall_idle_s=0).is_due(WAIT, 1e9)


def test_a_job_ends_only_after_two_roll_calls_that_agree() -> None:
    made = clock(hang_s=30)
    assert not made.hangs(WAIT, STUCK, 60.0, 200.0)
    assert made.doubts
    assert not made.hangs(WAIT, STUCK._replace(guilty=(2,)), 60.0, 201.0)
    assert made.hangs(WAIT, STUCK._replace(guilty=(2,)), 60.0, 202.0)


def test_who_works_saves_or_has_not_waited_long_enough_ends_no_job() -> None:
    made = clock(hang_s=30)
    for verdict in (
        STUCK._replace(kind="busy"),
        STUCK._replace(kind="work"),
        STUCK._replace(kind="apart"),
        STUCK._replace(waited_s=29),
    ):
        assert not any(made.hangs(WAIT, verdict, 60.0, 200.0 + n) for n in range(3))
    assert not any(clock().hangs(WAIT, STUCK, 60.0, 200.0 + n) for n in range(3))


def test_idle_ranks_end_a_job_by_the_time_that_all_hosts_agree_on() -> None:
    made = clock(hang_s=30)
    idle = RollVerdict("idle", "ranks 0-1 are idle", (), (0, 1), 500.0)
    assert not any(made.hangs(IDLE, idle, 10.0, 200.0 + n) for n in range(3))
    assert [made.hangs(IDLE, idle, 31.0, 200.0 + n) for n in range(2)] == [False, True]


def test_a_guilty_rank_that_did_something_of_late_ends_no_job() -> None:
    made = clock(hang_s=30)
    assert not any(made.hangs(WAIT, STUCK, 14.0, 200.0 + n) for n in range(3))
    assert [made.hangs(WAIT, STUCK, 15.0, 200.0 + n) for n in range(2)] == [False, True]


def test_a_transfer_in_which_bytes_moved_of_late_ends_no_job() -> None:
    """Two looks at idle processors a second apart are not enough."""
    made = clock(hang_s=30)
    slow = RollVerdict("transfer", "all ranks have come", (), (0, 1), 100.0)
    assert not any(made.hangs(WAIT, slow, 14.0, 200.0 + n) for n in range(3))
    assert [made.hangs(WAIT, slow, 15.0, 200.0 + n) for n in range(2)] == [False, True]


def test_what_the_leader_asks_once_its_own_ranks_have_ended_delays_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its ranks ran for ten hours; one elsewhere has been idle for ten minutes when they end."""
    ended_s, idle_from_s, now_s = 36_000, 36_000 - 600, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    looks, called = list[Callable[[], None]](), list[float]()

    def ask(what: str, _ranks: object, done: Callable[[Any], None]) -> None:
        called.extend([now_s - idle_from_s] * (what == ROLL))
        done(SimpleNamespace(silent=dict, idle_s={1: now_s - idle_from_s}, looks=[]))

    watch: Any = StallWatch(
        cast("Any", SimpleNamespace(after=lambda _s, do: looks.append(do))),
        cast("Any", SimpleNamespace(has_ranks=False, was_away=lambda: None)),
        cast("Any", SimpleNamespace(ask=ask)),
        cast("Any", None),
        cast("Any", None),
        cast("Any", SimpleNamespace(is_at_work=lambda: now_s > ended_s)),
        Deadlines()._replace(stall_idle_s=300, hang_s=1800),
        True,
        lambda: None,
    )
    monkeypatch.setattr(watch, "_called", lambda *_: setattr(watch, "_calling", False))
    watch._looks.calls = lambda _done: None
    watch.begin()
    while now_s < ended_s + 2000:
        now_s += 5
        looks.pop()()
    assert called[0] <= 610
    assert any(1800 <= idle_s <= 1810 for idle_s in called)


@pytest.mark.parametrize(
    ("looks", "silent", "ends"),
    [
        ([look(1, ended=0)], {}, True),
        ([look(1, state="Z")], {}, True),
        ([look(1)], {}, False),
        ([], {1: "algo-2"}, False),
    ],
)
def test_a_guilty_rank_that_has_ended_is_not_busy(
    monkeypatch: pytest.MonkeyPatch, looks: list[RankLook], silent: dict[int, str], ends: bool
) -> None:
    """Rank 0 waits for rank 1, and polls. Of rank 1 nobody can say since when it is idle."""
    now_s, said, later = 0.0, list[str](), list[Callable[[], None]]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def ask(_what: str, _ranks: object, done: Callable[[Collector], None]) -> None:
        hosts = {0: ("algo-1", (0, *(one.rank for one in looks)))}
        hosts |= {1 + rank: (name, (rank,)) for rank, name in silent.items()}
        found = Collector(1, hosts, 2, 0.0)
        found.add(0, [look(0, call(age_s=now_s, ranks=range(2)), cpu=1.0), *looks], {0: 0.0})
        done(found)

    owner = SimpleNamespace(is_at_work=lambda: True, job_hangs=lambda e: said.append(e.message))
    watch = StallWatch(
        cast("Any", SimpleNamespace(after=lambda _s, do: later.append(do))),
        cast("Any", None),
        cast("Any", SimpleNamespace(ask=ask)),
        cast("Any", SimpleNamespace(event=lambda *_, **__: None, folder="")),
        lambda *_, **__: None,
        cast("Any", owner),
        Deadlines()._replace(hang_s=30),
        True,
        lambda: None,
    )
    now_s = 100.0
    watch.told()
    if ends:
        later.pop()()
        assert said[0].startswith("rank 0 waits in all_reduce no. 6")
    assert bool(said) is ends and not later
