"""Between nodes: every verb is right for any order of ranks; compressed sums keep their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.collectives.core.nodes_worker import LEADER_BYTES, SEGMENT_BYTES
from tests.collectives.support.jobs import clean, job

# small sizes, so that small data meets the borders between the algorithms
TUNED = {
    "COLLECTIVES_CHUNK_BYTES": "4096",
    "COLLECTIVES_SLOT_BYTES": "8192",
    "COLLECTIVES_ONE_SHOT_BYTES": "1024",
    "COLLECTIVES_LEADER_BYTES": str(LEADER_BYTES),
    "COLLECTIVES_SEGMENT_BYTES": str(SEGMENT_BYTES),
}


def run(nodes: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """What the ranks say; rank i is on the node that the letter names."""
    given = {**TUNED, **variables}
    with job(
        "core.nodes_worker", len(nodes), *arguments, environ=given, nodes=list(nodes)
    ) as started:
        return clean(started.ends())


def assert_alike(said: list[dict[str, Any]]) -> None:
    assert len({each["same"] for each in said}) == 1, "ranks hold other bits"


@pytest.mark.parametrize("nodes", ["aabb", "abab", "aab", "abc", "abbb", "abcabb"])
def test_every_verb_is_right_at_every_border_of_sizes(nodes: str) -> None:
    said = run(nodes, "edges")
    assert_alike(said)
    assert said[0]["paths"]["leaders"] and said[0]["paths"]["rails"], said[0]["paths"]


def test_leaders_of_many_nodes_are_right_when_they_double_mesh_or_take_two_phases() -> None:
    said = run("abcdeff", "edges", COLLECTIVES_LEADER_BYTES=str(1 << 20))
    assert_alike(said)
    assert said[0]["paths"]["leaders"], said[0]["paths"]


@pytest.mark.parametrize("nodes", ["abcdeab", "abcdefg", "cabdefghi"])
def test_sums_of_many_nodes_are_right_in_rounds(nodes: str) -> None:
    """Five to nine nodes: the last round has a part of the blocks, and some are cut in two."""
    said = run(nodes, "sums", COLLECTIVES_LEADER_BYTES="2048")
    assert_alike(said)
    assert said[0]["paths"]["leaders"] and said[0]["paths"]["rails"], said[0]["paths"]


def test_large_sums_of_very_many_nodes_are_right_in_rounds() -> None:
    """Beyond 16 nodes, where the size does not matter."""
    with job("core.nodes_worker", 17, "sums", nodes=list("abcdefghijklmnopq")) as started:
        assert_alike(clean(started.ends()))


def test_defaults_are_right_too() -> None:
    with job("core.nodes_worker", 4, "edges", nodes=list("abba")) as started:
        assert_alike(clean(started.ends()))


def test_an_all_to_all_in_place_is_right_where_blocks_come_before_others_are_posted() -> None:
    """Distances beyond the first eight are posted when blocks have come."""
    with job("core.links_worker", 10, "swaps", "200000", nodes=list("abcdefghij")) as started:
        clean(started.ends())


@pytest.mark.parametrize("segment", ["65536", "4194304"])
def test_more_than_sockets_hold_goes_through_in_pieces(segment: str) -> None:
    nodes = "abbac"
    given = {"COLLECTIVES_SEGMENT_BYTES": segment}
    with job("core.nodes_worker", len(nodes), "large", environ=given, nodes=list(nodes)) as started:
        clean(started.ends())


@pytest.mark.parametrize(
    ("nodes", "streams", "due"), [("ab", 1, 1), ("ab", 4, 4), ("aabb", 8, 4), ("abb", 3, 3)]
)
def test_messages_in_parts_over_several_streams_give_the_same_sums(
    nodes: str, streams: int, due: int
) -> None:
    """The ranks of a node share its streams; `due`: those of rank 0, which has one peer."""
    given = {"COLLECTIVES_STREAMS": str(streams), "COLLECTIVES_SEGMENT_BYTES": "4MiB"}
    with job(
        "core.links_worker", len(nodes), "streams", "3000001", environ=given, nodes=list(nodes)
    ) as started:
        said = clean(started.ends())
    assert said[0]["connections"] == due, said


def test_a_stream_that_is_lost_is_a_loss_that_names_the_end_found_missing() -> None:
    with job(
        "core.links_worker", 2, "severs", "3000001", environ={"COLLECTIVES_STREAMS": "4"},
        nodes="ab",
    ) as started:  # fmt: skip
        said = clean(started.ends())
    for each in said:  # who finds it first says so to the other as well
        assert each["kind"] == "PeerError", each
        assert each["ranks"] in ([0], [1]), each


@pytest.mark.parametrize("streams", [1, 4])
def test_ranks_that_expect_other_lengths_hear_so_however_many_streams_there_are(
    streams: int,
) -> None:
    """Half a message of 512 KiB has parts like those of one of 256 KiB. A sender whose message is
    on its way may have ended its call by then."""
    given = {"COLLECTIVES_STREAMS": str(streams)}
    with job("core.links_worker", 2, "uneven", "131072", environ=given, nodes="ab") as started:
        said = clean(started.ends())
    sender, receiver = (each["told"] for each in said)
    for told in [*receiver, *(each for each in sender if each["kind"])]:
        assert told["kind"] == "MismatchError", told
        assert "has parts of other lengths for this rank" in told["text"], told


@pytest.mark.parametrize(("wire", "nodes"), [("fp16", "abab"), ("bf16", "abcc"), ("int8", "abbab")])
def test_compressed_sums_are_alike_on_all_ranks_and_off_by_two_roundings_at_most(
    wire: str, nodes: str
) -> None:
    said = run(nodes, "wire", COLLECTIVES_WIRE=wire)
    assert len({each["digest"] for each in said}) == 1, "ranks hold other bits"
    for each in said:
        assert each["off"][wire] <= 1, each
        assert each["scatter_off"][wire] <= 1, each
        assert each["single"] > 1e-5, "nothing was compressed"
        # nothing is kept from call to call: the same values are rounded the same way each time
        assert each["mean"] == pytest.approx(each["single"], rel=1e-6)
