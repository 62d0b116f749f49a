"""Sends and receives: right in every size and order, beside collectives, in a node and between."""

from __future__ import annotations

import signal
import statistics
from typing import Any

import pytest

from tests.collectives.core.p2p_worker import SIZES
from tests.collectives.faults.test_faults import NODES, names
from tests.collectives.support.jobs import clean, job

BY_RING = {"COLLECTIVES_EAGER_BYTES": "1GiB"}


def run(nodes: str, *scenarios: str, **environ: str) -> list[dict[str, Any]]:
    with job(
        "core.p2p_worker", len(nodes), *scenarios, nodes=names(nodes), environ=environ
    ) as started:
        return clean(started.ends())


@pytest.mark.parametrize("nodes", [*NODES, pytest.param("abab", id="ranks in turns")])
def test_messages_of_every_size_arrive_whole_in_order_and_from_whom_they_say(nodes: str) -> None:
    said = run(nodes, "sizes", "order", "any_source", "lengths")
    others = len(nodes) - 1
    for each in said:
        assert each["sizes"]["sends"] == len(SIZES) * others
        assert each["sizes"]["receives"] == len(SIZES) * others
    assert said[0]["any_source"]["from"] == [20] * others
    assert said[1]["lengths"]["kind"] == "MismatchError"
    assert "rank 0" in said[1]["lengths"]["text"]


@pytest.mark.parametrize("nodes", NODES)
def test_messages_and_collectives_of_two_threads_do_not_disturb_each_other(nodes: str) -> None:
    run(nodes, "beside")


@pytest.mark.parametrize("nodes", NODES)
def test_a_receive_that_nobody_answers_ends_at_its_deadline_and_names_the_rank(nodes: str) -> None:
    words = run(nodes, "alone")[0]["alone"]
    assert words["kind"] == "CollectiveTimeout", words
    assert words["ranks"] == [1], words
    assert "tag 3" in words["text"]


def test_the_end_of_a_message_is_lost_neither_to_another_thread_nor_to_a_signal() -> None:
    """The core says it once: to the thread that looks first."""
    words = run("aa", "told_once")[0]["told_once"]
    assert words == {"other": [100, 100], "again": [100]}, words


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_a_wait_without_time_leaves_the_request_and_any_integer_names_a_peer(nodes: str) -> None:
    late = ["CollectiveTimeout", False]
    words = run(nodes, "odd_arguments")[0]["odd_arguments"]
    assert words == {"-0.5": late, "nan": late, "bytes": 100}, words


@pytest.mark.parametrize(
    ("nodes", "environ"),
    [
        pytest.param("aa", {}, id="one node"),
        pytest.param("aa", BY_RING, id="one node, through the ring"),
        pytest.param("aab", BY_RING, id="beside a request of another node"),
        pytest.param("ab", {}, id="two nodes"),
    ],
)
def test_a_message_moves_as_fast_while_one_side_computes(
    nodes: str, environ: dict[str, str]
) -> None:
    """Beside what it takes where both wait, in turns on the same machine. A wake-up that is lost
    costs 50 ms for each 256 KiB, a hundred times as much in all; a look every ms ten times."""
    said = run(nodes, "away", **environ)
    sender, receiver = said[0]["away"], said[1]["away"]
    limit_s = 6 * statistics.median(receiver["none"]) + 0.03
    assert statistics.median(receiver["sender"]) < limit_s, receiver
    assert statistics.median(sender["receiver"]) < limit_s, (sender, receiver["none"])


@pytest.mark.parametrize("nodes", NODES)
def test_a_receive_from_a_rank_that_dies_is_a_peer_error(nodes: str) -> None:
    with job("core.p2p_worker", 3, "dead", nodes=names(nodes)) as started:
        ends = started.ends()
        assert ends[2].code == -signal.SIGKILL
        for each in clean(ends[:2]):
            assert each["dead"]["kind"] == "PeerError", each
            assert each["dead"]["ranks"] == [2], each


OFFERED = 5  # of what `around` sends each rank: above the eager size, and with room


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_messages_around_the_eager_size_arrive_whole_or_are_refused(nodes: str) -> None:
    for each in run(nodes, "around"):
        words = each["around"]
        assert words["kinds"] == ["MismatchError", ""]
        assert words["read"] == (OFFERED if nodes == "aa" else 0), words


def test_messages_arrive_where_the_system_forbids_to_read_anothers_memory() -> None:
    for each in run("aa", "unreadable"):
        words = each["unreadable"]
        assert words["kinds"] == ["MismatchError", ""]
        assert (words["read"], words["asked"]) == (0, OFFERED), words


@pytest.mark.parametrize("nodes", NODES)
def test_large_and_small_messages_of_a_pair_keep_their_order(nodes: str) -> None:
    run(nodes, "mixed_order")


def test_a_message_of_registered_memory_is_read_from_the_mapping() -> None:
    for each in run("aa", "registered"):
        assert each["registered"] == {"mapped": 3, "read": 0, "asked": 0}, each


def test_large_messages_that_nobody_has_asked_for_stay_with_their_sender() -> None:
    """Of 160 MiB, of which the receiver takes 4 at a time."""
    assert run("aa", "unexpected")[0]["unexpected"]["grown"] < 16 << 20


def test_more_messages_than_may_be_offered_at_once_arrive() -> None:
    words = run("aa", "crowded")[0]["crowded"]
    assert words["read"] >= 64, words


def test_a_send_that_nobody_receives_in_time_is_withdrawn() -> None:
    words = run("aa", "withdrawn")[1]["withdrawn"]
    assert words["kind"] == "CollectiveTimeout" and words["ranks"] == [0], words


def test_a_receive_that_gives_up_takes_nothing_from_the_next() -> None:
    words = run("aa", "given_up")[0]["given_up"]
    assert words["kind"] == "CollectiveTimeout", words


def test_a_copy_is_not_held_up_by_what_waits_before_it_in_the_ring() -> None:
    assert run("aa", "held_copy")[0]["held_copy"]["asked"] == 1


def test_an_offer_outlives_its_request_and_a_fork_and_ends_with_a_close() -> None:
    said = run("aa", "dropped")
    assert said[0]["dropped"]["kind"] == "ClosedError", said
    assert said[1]["dropped"]["kind"] == "PeerError", said
    assert said[1]["dropped"]["ranks"] == [0], said
