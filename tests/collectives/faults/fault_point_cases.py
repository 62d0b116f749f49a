"""A case for every fault point of the core: the small job in which a rank is broken there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tests.collectives.native.driving import CORE

# small sizes, so that small data takes every way and goes in several pieces
TUNED: Mapping[str, str] = MappingProxyType({
    "COLLECTIVES_CHUNK_BYTES": "4096", "COLLECTIVES_SLOT_BYTES": "8192",
    "COLLECTIVES_ONE_SHOT_BYTES": "1024", "COLLECTIVES_DIRECT_BYTES": "1024",
    "COLLECTIVES_LEADER_BYTES": "2048", "COLLECTIVES_SEGMENT_BYTES": "4096",
    "COLLECTIVES_EAGER_BYTES": "1GiB",
})  # fmt: skip
# more in one piece than sockets hold
LARGE: Mapping[str, str] = MappingProxyType({"COLLECTIVES_SEGMENT_BYTES": "67108864"})
OFFERS: Mapping[str, str] = MappingProxyType({**TUNED, "COLLECTIVES_EAGER_BYTES": "1024"})
LEADERS: Mapping[str, str] = MappingProxyType({**TUNED, "COLLECTIVES_LEADER_BYTES": "1048576"})
DEAD = ("PeerError",)
LATE = ("CollectiveTimeout",)
ENDED = ("AbortedError",)
EITHER = (*DEAD, *ENDED)  # two failures at once: which comes first counts


class Case(NamedTuple):
    """`play` names a scenario of fault_point_worker.py with its numbers; rank i is on the node of
    the letter nodes[i]; rank `victim` is broken at the nth passing of `point`. Survivors raise one
    of `kinds`, which names the victim; AbortedError alone names nobody."""

    point: str
    play: str
    victim: int
    nodes: str = "aaa"
    nth: int = 3
    kinds: tuple[str, ...] = DEAD
    environ: Mapping[str, str] = TUNED
    in_file: bool = False  # the node's memory is a file in /dev/shm, as where there is no memfd

    @property
    def name(self) -> str:
        return f"{self.point}-{self.play.replace(' ', '-')}-{self.nodes}"


def points() -> list[str]:
    """All points, as the core lists them."""
    text = (CORE / "group" / "fault_point.h").read_text()
    return re.findall(r"\bPOINT\((\w+)\)", text)


def passed() -> list[str]:
    """The points that the sources pass, each once for every place."""
    sources = (path for path in sorted(CORE.rglob("*.c")) if path.stem != "fault_point")
    return [
        name
        for path in sources
        for name in re.findall(r"MC_FAULT_POINT\((\w+)\)", path.read_text())
    ]


def _of_a_node() -> Iterator[Case]:
    for point in ("attach_mapped", "attach_locked"):
        yield Case(point, "creates", 1, nth=1, kinds=LATE, in_file=True)
    for point in ("attach_announced", "attach_complete"):
        yield Case(point, "creates", 1, nth=1, in_file=True)
    yield Case("detach_left", "leaves", 1, nth=1)
    for point in ("epoch_described", "epoch_raised", "epoch_reached"):
        yield Case(point, "barrier", 1)
    yield Case("wait_counted", "held 0", 1, nth=1)
    for point in ("one_shot_copied_in", "one_shot_reading"):
        yield Case(point, "all_reduce 10", 1)
        yield Case(point, "reduce 10 1", 1)
    for point in ("staged_copied_in", "staged_summed", "staged_next_in", "staged_reading"):
        yield Case(point, "all_reduce 5000", 2, nth=3)
    for point in ("parts_copied_in", "parts_summed"):
        yield Case(point, "reduce_scatter 3000", 0, nth=5)
    for point in ("gather_copied_in", "gather_published", "gather_reading"):
        yield Case(point, "all_gather 3000", 0, nth=5)
    yield Case("gather_copied_in", "gather 3000 1", 2, nth=5)
    yield Case("streams_copied_in", "broadcast 3000 1", 1, nth=5)
    yield Case("streams_spread", "broadcast 3000 1", 2, nth=5)
    yield Case("alltoall_counted", "uneven 100", 1)
    for point, root_or_not in (("alltoall_copied_in", 1), ("alltoall_reading", 2)):
        yield Case(point, "scatter 3000 1", root_or_not, nth=5)
        yield Case(point, "all_to_all 1000", 1, nth=5)
    yield Case("registered_agreed", "direct_all_reduce 20000", 1)
    yield Case("adopt_offered", "adopts 300000", 1, nth=1)
    yield Case("adopt_mapped", "adopts 300000", 0, nth=1)
    yield Case("registered_writing", "adopts 300000", 1, nth=4)
    yield Case("registered_writing", "direct_all_reduce 20000", 1, nth=4)
    yield Case("registered_gathered", "direct_all_gather 20000", 2)
    yield Case("registered_scattered", "direct_reduce_scatter 20000", 0)


def _of_a_failure() -> Iterator[Case]:
    for point in ("error_claimed", "error_filled"):
        yield Case(point, "aborts", 1, nth=1)
        yield Case(point, "expires 0", 1, nth=1)
    yield Case("error_written", "aborts", 1, nth=1, kinds=ENDED)
    yield Case("error_adopted", "aborts", 0, "aab", nth=1, kinds=EITHER)
    yield Case("error_propagated", "aborts", 0, "abc", nth=1, kinds=EITHER)
    yield Case("abort_heard", "aborted 2", 0, "abc", nth=1, kinds=EITHER)


def _of_messages() -> Iterator[Case]:
    for point in ("post_begun", "ring_head_written", "ring_filled", "ring_noted", "ring_head_read"):
        yield Case(point, "messages 1000", 1, nth=5)
    for point in ("ring_piece_written", "ring_writer_blocked", "ring_piece_read"):
        yield Case(point, "messages 900000", 1, nth=5)
    for point in ("thread_armed", "thread_moved"):
        yield Case(point, "messages 1000", 1, nth=1)
    for point in ("offer_written", "offer_arrived", "offer_reading", "offer_taken", "offer_ended"):
        yield Case(point, "messages 5000", 1, nth=5, environ=OFFERS)
    yield Case("offer_piece_read", "messages 3000000", 1, nth=5, environ=OFFERS)
    for point in ("offer_wanted", "offer_copying"):
        yield Case(point, "unreadable 900000", 1, nth=5, environ=OFFERS)
    yield Case("offer_withdrawn", "withdraws 5000", 1, nth=1, environ=OFFERS)
    for point in ("message_queued", "message_arriving", "message_landed", "message_sent"):
        yield Case(point, "messages 1000", 2, "aab")
    yield Case("message_arriving", "messages 900000", 0, "aab")


def _between_nodes() -> Iterator[Case]:
    yield Case("alltoall_counted", "uneven 100", 1, "aab")
    yield Case("wait_counted", "held_gather 5000 1", 0, "aab", nth=1)
    for point in ("parts_copied_in", "parts_summed", "streams_copied_in", "streams_spread"):
        yield Case(point, "all_reduce 50000", 1, "aab", nth=5)
    for point in ("alltoall_copied_in", "alltoall_reading"):
        yield Case(point, "all_to_all 2000", 1, "aab", nth=5)
    for point in ("barrier_node_in", "barrier_nodes_in", "exchange_posted", "exchange_received"):
        yield Case(point, "barrier", 0, "aab")
    for point in ("exchange_posted", "exchange_received"):
        yield Case(point, "barrier", 2, "abcde", nth=5)
    for point in ("leaders_summed", "leaders_collected"):
        yield Case(point, "all_reduce 10", 2, "aab")
        yield Case(point, "reduce 10 1", 1, "aab")
    for point in ("leaders_halved", "leaders_joined"):
        yield Case(point, "all_reduce 10000", 1, "abc", environ=LEADERS)
    for point in ("leaders_scatter_posted", "leaders_scattered"):
        yield Case(point, "reduce_scatter 10", 0, "aab")
    for point, victim in (("leaders_gathered", 1), ("leaders_exchanged", 2)):
        yield Case(point, "all_gather 10", 0, "aab")
        yield Case(point, "gather 10 0", victim, "aab")
    for point in ("segment_reduced", "segment_arrived", "rail_rs_started", "rail_summed",
                  "rail_ag_started", "rail_finished"):  # fmt: skip
        yield Case(point, "all_reduce 50000", 0, "aab", nth=6)
    yield Case("rail_ag_started", "all_reduce 50000", 3, "aabb", nth=6)
    for point in ("round_posted", "round_summed"):
        yield Case(point, "all_reduce 50000", 2, "abcde", nth=6)
    yield Case("round_posted", "all_reduce 10000", 4, "abcde", environ=LEADERS)
    yield Case("round_summed", "reduce 50000 1", 3, "abcde", nth=5)
    yield Case("tree_received", "broadcast 10 0", 2, "aab")
    yield Case("tree_sent", "broadcast 10 0", 0, "aab")
    for point, victim in (("chain_received", 2), ("chain_passed", 0), ("chain_shared", 1)):
        yield Case(point, "broadcast 100000 0", victim, "aab", nth=9)
    for point in ("blocks_posted", "blocks_arrived"):
        yield Case(point, "all_gather 10000", 2, "aab", nth=5)
    yield Case("apart_posted", "gather 2000 0", 2, "aab")
    for point in ("sums_sent", "sums_arrived"):
        yield Case(point, "reduce_scatter 5000", 1, "aab", nth=5)
    yield Case("scatter_nodes_sent", "scatter 10 0", 0, "aab")
    yield Case("scatter_node_arrived", "scatter 10 0", 2, "aab")
    yield Case("apart_posted", "scatter 2000 0", 2, "aab")
    for point in ("nodes_alltoall_posted", "nodes_alltoall_in_node"):
        yield Case(point, "all_to_all 2000", 2, "aab")


def _of_connections() -> Iterator[Case]:
    for point in (
        "connector_connecting",
        "connector_hello_sent",
        "connector_finished_sent",
        "connector_accepted",
    ):
        yield Case(point, "all_reduce 10", 2, "aab", nth=1)
        yield Case(point, "all_reduce 10", 1, "ab", nth=1)
    for point in (
        "listener_accepted",
        "listener_answered",
        "listener_handed_over",
        "listener_fetched",
    ):
        yield Case(point, "all_reduce 10", 0, "aab", nth=1)
        yield Case(point, "all_reduce 10", 0, "ab", nth=1)
    for point in ("frames_sent", "header_read", "frame_landed"):
        yield Case(point, "all_reduce 10", 2, "aab")
        yield Case(point, "all_reduce 10", 0, "aab")
    for point in ("frames_part_sent", "payload_part_read"):
        yield Case(point, "all_gather 4000000", 1, "ab", nth=1, environ=LARGE)
    yield Case("heartbeat_sent", "held 1", 2, "aab", nth=1)
    yield Case("goodbye_sent", "leaves", 2, "aab", nth=1)


CASES: tuple[Case, ...] = (
    *_of_a_node(), *_of_a_failure(), *_of_messages(), *_between_nodes(), *_of_connections(),
)  # fmt: skip

# broken in every run; make test-collectives breaks all
_SAMPLE = (
    "streams_copied_in",
    "barrier_node_in",
    "exchange_posted",
    "leaders_collected",
    "leaders_joined",
    "round_posted",
    "rail_ag_started",
    "segment_arrived",
    "tree_sent",
    "chain_passed",
    "blocks_posted",
    "sums_arrived",
    "nodes_alltoall_posted",
    "connector_hello_sent",
    "connector_finished_sent",
    "listener_answered",
    "listener_fetched",
    "frames_part_sent",
    "goodbye_sent",
)
# a rank is stopped or interrupted there: one point of every kind of step, the first in every run
_STEPS = (
    "epoch_described", "staged_summed", "error_claimed", "ring_head_read", "rail_ag_started",
    "wait_counted", "one_shot_reading", "gather_published", "alltoall_reading", "registered_agreed",
    "exchange_received", "chain_received", "connector_hello_sent", "listener_answered",
    "offer_reading",
)  # fmt: skip
_SHORT_STEPS = 5


def first_of(point: str) -> Case:
    return next(case for case in CASES if case.point == point)


# by their names
SHORT = frozenset(
    {case.name for case in CASES if len(set(case.nodes)) == 1}
    | {first_of(point).name for point in _SAMPLE}
)
STEPS = tuple(first_of(point) for point in _STEPS)
SHORT_STEPS = frozenset(case.name for case in STEPS[:_SHORT_STEPS])
