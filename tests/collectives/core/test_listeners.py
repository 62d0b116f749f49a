"""All groups of a process listen at one socket, and each is found, missed and left by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.collectives.support.jobs import clean, job
from tests.support.waiting import within

LEFT_S = 8.0  # a wait is a second old before it looks for one it does not know, refused for two


def played(play: str, victim: int = 0) -> list[Any]:
    with job("core.listener_worker", 2, play, str(victim), nodes="ab") as started:
        return clean(started.ends())


@pytest.mark.parametrize("victim", [0, 1])  # the higher rank of a pair connects, the lower watches
def test_a_rank_that_leaves_a_group_is_missed_there_though_its_world_listens_on(
    victim: int,
) -> None:
    said = played("leaves", victim)
    assert [each["sum"] for each in said] == [3.0, 3.0], said
    told = said[1 - victim]
    assert (told["kind"], told["ranks"]) == ("PeerError", [victim]), said
    assert told["took_s"] < within(LEFT_S), said


@pytest.mark.parametrize("victim", [0, 1])
def test_a_hello_for_a_group_that_is_still_being_made_waits_for_it(victim: int) -> None:
    assert [each["sum"] for each in played("comes_late", victim)] == [3.0, 3.0]


def test_one_socket_listens_for_all_groups_until_the_last_is_closed() -> None:
    assert [each["found"] for each in played("listens")] == [[0, 1, 1, 0]] * 2


def test_a_forked_child_makes_groups_of_its_own_and_keeps_no_port_of_its_parent_open() -> None:
    for said in played("forks"):
        assert (said["sum"], said["child"]) == (6.0, 0), said


def test_a_rank_may_fork_while_its_threads_open_and_close_listeners() -> None:
    for said in played("storms"):
        assert (set(said["codes"]), said["left"]) == ({0}, 0), said


def test_who_connects_is_let_go_of_though_a_forked_child_has_a_copy() -> None:
    """It would be looked at without end, and would wait without end for a word."""
    first, second = played("children_hold")
    assert (first["told"], first["sum"], second["sum"]) == (True, 3.0, 3.0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_leaves_a_group_is_missed_though_its_child_has_its_connections(
    victim: int,
) -> None:
    said = played("children_stay", victim)
    assert (said[1 - victim]["kind"], said[1 - victim]["ranks"]) == ("PeerError", [victim]), said


def test_a_want_of_descriptors_that_is_over_ends_no_later_wait() -> None:
    assert [each["sums"] for each in played("filled_once")] == [[3.0, 3.0]] * 2
