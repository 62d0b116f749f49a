"""Whom a stop of containers is told again, and for how long."""

from __future__ import annotations

from muster.local.backends.docker.reminders import AGAIN_S, YOUNG_S, Reminders

STOP_S = 1000.0
STARTED = {"algo-1": STOP_S - 3, "algo-2": STOP_S - 0.1}


def told(reminders: Reminders, listening: dict[str, float], until_s: float = 30.0) -> list[object]:
    """Who is told when (seconds after the stop); `listening`: from when on a host shows events."""
    found: list[object] = []
    for tenth in range(int(until_s * 10)):
        now = STOP_S + tenth / 10
        if reminders.is_due(now):
            heard = {host for host, since_s in listening.items() if now >= STOP_S + since_s}
            found += [(host, tenth / 10) for host in sorted(reminders.take(now, heard))]
    return found


def test_a_host_that_listened_at_the_stop_is_told_once() -> None:
    assert told(Reminders(STOP_S, STARTED, STARTED), {}) == []


def test_a_host_is_told_every_second_until_it_was_while_it_listened() -> None:
    """The one that came right after the last SIGTERM has not heard that."""
    reminders = Reminders(STOP_S, STARTED, {"algo-1"})
    assert told(reminders, {"algo-1": 0, "algo-2": 2.1}) == [
        ("algo-2", 1.0),
        ("algo-2", 2.0),
        ("algo-2", 3.0),
    ]


def test_an_older_host_that_has_shown_nothing_is_told_again_too() -> None:
    found = told(Reminders(STOP_S, STARTED, ()), {"algo-1": 0.5, "algo-2": 1.5})
    assert found == [("algo-1", 1.0), ("algo-2", 1.0), ("algo-2", 2.0)]


def test_a_container_that_is_just_being_started_counts_as_young() -> None:
    found = told(Reminders(STOP_S, {"algo-1": 0.0}, ()), {"algo-1": 0.2})
    assert found == [("algo-1", AGAIN_S)]


def test_one_that_never_shows_anything_is_told_until_the_end_unless_it_is_old() -> None:
    started = {"old": STOP_S - YOUNG_S - 1, "young": STOP_S - YOUNG_S + 1}
    found = told(Reminders(STOP_S, started, ()), {}, until_s=10.0)
    assert found == [("young", float(second)) for second in range(1, 10)]
