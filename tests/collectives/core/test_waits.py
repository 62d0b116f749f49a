"""How a rank waits, and what it asks of the kernel for the memory that ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.collectives.sizes import reserved
from tests.collectives.core.waiting_worker import CALLS, HUGE_BYTES
from tests.collectives.support.jobs import clean, job

SLOT_BYTES = 1 << 20
SLOTS = 4  # of each rank
ENDS_S = 40.0  # ranks that wait for each other in vain end before


def said_by_two(
    play: str, nodes: Sequence[str] = ("a", "a"), **variables: str
) -> list[dict[str, Any]]:
    with job("core.waiting_worker", 2, play, nodes=nodes, environ=variables) as started:
        return clean(started.ends(ENDS_S))


@pytest.mark.parametrize("spin_s", ["0", "0.1"])
def test_a_rank_that_waits_long_gives_the_processor_away_however_it_spins(spin_s: str) -> None:
    """The other rank comes only when this one is counted as asleep."""
    said_by_two("late", COLLECTIVES_SPIN_S=spin_s)


def test_a_rank_that_may_spin_for_long_does_not_sleep_before() -> None:
    for each in said_by_two("together", COLLECTIVES_SPIN_S="0.9"):
        assert each["sleeps"] < CALLS / 10, each


@pytest.mark.parametrize(("spin_s", "at_most"), [("0.09", CALLS // 10), ("0", 10 * CALLS)])
def test_a_rank_sleeps_for_a_message_of_another_node_only_where_it_may_not_spin(
    spin_s: str, at_most: int
) -> None:
    """The answer comes at once, so a spin is never in vain."""
    said = said_by_two("answers", ("a", "b"), COLLECTIVES_SPIN_S=spin_s)
    assert all(each["sleeps"] <= at_most for each in said), said
    if at_most > CALLS:
        assert sum(each["sleeps"] for each in said) > CALLS / 2, said


def test_slots_and_registered_memory_are_advised_for_huge_pages() -> None:
    said = said_by_two("pages", COLLECTIVES_SLOT_BYTES=str(SLOT_BYTES))
    if not all(each["can"] for each in said):
        pytest.skip("this kernel has no huge pages for shared memory")
    for each in said:
        assert each["slots"] == 2 * SLOTS * SLOT_BYTES, each
        assert each["registered"], each


def test_registered_memory_has_huge_pages_where_enough_are_reserved_and_others_elsewhere() -> None:
    with reserved(HUGE_BYTES // 2) as refusal:  # and a few: enough for one of the two
        if refusal:
            pytest.skip(refusal)
        said = said_by_two("huge")
    assert sorted(each["huge"] for each in said) == [False, True], said
    assert all(each["right"] and each["direct"] == 1 for each in said), said
    assert not any(each["left"] for each in said), "huge pages stay mapped after the release"
