"""Nodes with networks of their own and slow links between them; a link that is cut."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from benchmarks.collectives.links import (
    SWITCH,
    LinksError,
    far_end,
    interface,
    links,
    node,
    shape,
    shape_way,
    why_not,
)
from tests.collectives.core.test_nodes import TUNED, assert_alike
from tests.collectives.faults.fault_worker import LONG_S, SHORT_S
from tests.collectives.faults.test_faults import SLACK_S
from tests.collectives.support.jobs import clean, job
from tests.support.waiting import within

MBIT_PER_S = 200
SLOWER_MBIT_PER_S = 50
SLOWEST_MBIT_PER_S = 25
TOLD_S = 2.5  # GRACE_NS of csrc/inter/progress.c, and to spare
COUNT = str(16 << 20)  # of a sum: pieces of which no socket holds one
PAIR_COUNT = str(4 << 20)
LONG_COUNT = str(8 << 20)
STEADY_MS = 5000  # a queue so long that nothing is lost: data never pauses, and who does not
STEADY = {"COLLECTIVES_SPIN_S": "0"}  # spin finds something at each look
HANDLED_S = 2.0
CUT_S = 20.0
SILENT_S = 15.0 + 2.0  # MC_SILENT_MS of csrc/net/connection.h, which is looked at once a second


@pytest.fixture
def slow() -> Iterator[None]:
    """Two nodes, `a` and `b`, with links of 200 Mbit/s."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    try:
        with links(2):
            shape(2, MBIT_PER_S)
            yield
    except LinksError as error:
        pytest.skip(f"no shaped links here: {error}")


def placed(nodes: str) -> Callable[[int], Sequence[str]]:
    """The words that put a rank into the network of its node."""

    def words(rank: int) -> Sequence[str]:
        number = "ab".index(nodes[rank])
        name = f"COLLECTIVES_INTERFACE={interface(number)}"
        return ["ip", "netns", "exec", node(number), "env", name]

    return words


def silence(number: int) -> None:
    """The far end of the node's cable, so that the node itself is told nothing."""
    subprocess.run(
        ["ip", "netns", "exec", SWITCH, "ip", "link", "set", far_end(number), "down"],
        check=True, timeout=CUT_S,
    )  # fmt: skip


@pytest.mark.parametrize("nodes", ["aabb", "abab"])
def test_every_verb_is_right_over_slow_links_in_either_order_of_ranks(
    slow: None, nodes: str
) -> None:
    with job(
        "core.nodes_worker", 4, "edges", environ=TUNED, nodes=list(nodes), prefix=placed(nodes)
    ) as started:
        said = clean(started.ends())
    assert_alike(said)
    assert all(each["nodes"] == [0 if name == "a" else 1 for name in nodes] for each in said)


def test_the_sum_of_a_piece_that_waits_for_the_link_is_not_written_over(slow: None) -> None:
    """Who is not the root sums all pieces in the same places: sockets hold less than they send."""
    given = {"COLLECTIVES_SEGMENT_BYTES": "16M"}
    with job(
        "core.links_worker", 2, "reduces", COUNT, environ=given, nodes="ab", prefix=placed("ab")
    ) as started:
        clean(started.ends())


def test_an_all_to_all_in_place_sends_what_was_there_also_where_more_comes_than_goes(
    slow: None,
) -> None:
    shape_way(node(1), interface(1), SLOWER_MBIT_PER_S)
    with job(
        "core.links_worker", 2, "swaps", PAIR_COUNT, nodes="ab", prefix=placed("ab")
    ) as started:
        clean(started.ends())


@pytest.mark.promise("F40")
def test_a_call_that_is_too_slow_ends_at_its_deadline_though_its_data_moves(slow: None) -> None:
    shape(2, SLOWEST_MBIT_PER_S, STEADY_MS)
    with job(
        "core.links_worker", 2, "lasts", LONG_COUNT, environ=STEADY, nodes="ab", prefix=placed("ab")
    ) as started:
        said = clean(started.ends())
    for each in said:
        assert each["kind"] == "CollectiveTimeout", each
        assert SHORT_S * 0.9 <= each["took_s"] < SHORT_S + within(TOLD_S), each


def test_signal_handlers_run_while_data_moves(slow: None) -> None:
    shape(2, SLOWER_MBIT_PER_S, STEADY_MS)
    with job(
        "core.links_worker",
        2,
        "handles",
        LONG_COUNT,
        environ=STEADY,
        nodes="ab",
        prefix=placed("ab"),
    ) as started:
        started.wait_for("busy-1")
        struck = time.monotonic()
        started.strike(1, signal.SIGTERM)
        said = clean(started.ends())[1]
    assert len(said["handled"]) == 1, said
    assert said["handled"][0] - struck < within(HANDLED_S), said
    assert said["ended"] - said["handled"][0] > HANDLED_S, "the signal came too late to tell"


@pytest.mark.parametrize("streams", [1, 4])
def test_nothing_is_read_into_memory_of_a_failed_call_when_the_group_is_closed(
    slow: None, streams: int
) -> None:
    """The other end is gone, so the good-bye finds what it had sent before."""
    given = {"COLLECTIVES_STREAMS": str(streams)}
    with job(
        "core.links_worker", 2, "leaves", COUNT, environ=given, nodes="ab", prefix=placed("ab")
    ) as started:
        started.wait_for("busy")
        started.strike(1, signal.SIGSTOP)  # it shall not read why the call ends
        started.mark("stopped")
        started.wait_for("failed")
        started.strike(1, signal.SIGKILL)
        said = clean(started.ends(of=[0]))[0]
    assert said["kind"] == "AbortedError", said
    assert said["written"] == 0, said


@pytest.mark.promise("F40")
def test_a_cut_link_is_a_timeout_that_names_those_behind_it_on_both_sides(slow: None) -> None:
    nodes = "aab"
    with job(
        "faults.fault_worker", 3, "cut", "2", nodes=list(nodes), prefix=placed(nodes)
    ) as started:
        for rank in range(3):
            started.wait_for(f"ready-{rank}")
        subprocess.run(
            ["ip", "netns", "exec", node(1), "ip", "link", "set", interface(1), "down"],
            check=True, timeout=CUT_S,
        )  # fmt: skip
        started.mark("cut")
        said = clean(started.ends())
    for rank, others in ((0, {2}), (1, {2}), (2, {0, 1})):
        each = said[rank]
        assert each["kind"] == "CollectiveTimeout", each
        assert each["took_s"] < SHORT_S + within(SLACK_S), each
        assert set(each["ranks"]) <= others and each["ranks"], each


@pytest.mark.promise("F40")
def test_a_host_that_falls_silent_amid_data_is_told_long_before_the_deadline(slow: None) -> None:
    """Neither its data nor its probes are acknowledged: the deadline of the sum is LONG_S."""
    with job(
        "faults.fault_worker", 2, "killed_inside", "1", nodes="ab", prefix=placed("ab")
    ) as started:
        for rank in range(2):
            started.wait_for(f"busy-{rank}")
        silence(1)
        cut = time.monotonic()
        said = clean(started.ends())
    for rank, each in enumerate(said):
        assert each["kind"] == "PeerError", each
        assert each["ranks"] == [1 - rank], each
        assert each["failed_at"] - cut < SILENT_S + within(SLACK_S) < LONG_S, each
