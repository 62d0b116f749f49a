"""A host's own stand is not the silence of the others: with a clock of the test's own."""

from __future__ import annotations

from muster.run.channel.suspension import SuspensionGuard
from muster.types.deadlines import Deadlines

LIMITS = Deadlines()
STAND_S = LIMITS.lost_after_s / 2
SPARED_S = LIMITS.warn_after_s


def looked(*times: float) -> list[bool]:
    guard = SuspensionGuard(LIMITS)
    return [guard.spares(time) for time in times]


def test_looks_that_come_in_time_spare_nobody() -> None:
    assert not any(looked(*range(1000, 1100)))
    assert looked(5000.0) == [False]  # the first of all follows no stand
    assert not any(looked(1000, 1000 + STAND_S - 0.1, 1001 + STAND_S))


def test_after_a_stand_everybody_has_a_while_to_be_heard() -> None:
    back = 1000 + STAND_S
    assert looked(1000, back, back + SPARED_S - 0.1, back + SPARED_S) == [False, True, True, False]


def test_a_host_that_does_nothing_but_stand_judges_all_the_same() -> None:
    times = [1000 + i * STAND_S for i in range(6)]
    assert looked(*times) == [False, True, False, False, False, False]


def test_a_later_stand_counts_again() -> None:
    later = 1010 + 2 * STAND_S
    assert looked(1000, 1000 + STAND_S, 1009 + STAND_S, 1010 + STAND_S, later)[-2:] == [False, True]
