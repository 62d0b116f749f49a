"""The simulator of sums over nodes: times that a hand can work out, and its picture."""

from __future__ import annotations

import json

import pytest

from benchmarks.simulated.__main__ import RESULTS
from benchmarks.simulated.domains import crossing, flat, two_level
from benchmarks.simulated.network import Host, Link, seconds
from benchmarks.simulated.picture import PICTURE, draw
from benchmarks.simulated.schedules import FRAME_BYTES, Shape, doubling, ours, ring

MIB, PART = 1 << 20, 16 << 10
WIRE_ONLY = Host(latency_s=0, message_s=0, byte_s=0)
LATENCY_ONLY = Host(latency_s=1, message_s=0, byte_s=0)
LINK = Link(bytes_per_s=MIB)


@pytest.mark.parametrize(
    ("made", "carried"), [(ring, 2 * 63 / 64), (ours, 2 * 63 / 64), (doubling, 6)]
)
def test_a_link_carries_what_the_schedule_sends(made: object, carried: float) -> None:
    assert callable(made)
    took = seconds(made(Shape(64), 64 * MIB), WIRE_ONLY, LINK)
    assert took == pytest.approx(64 * carried, rel=0.01)


@pytest.mark.parametrize(
    ("nodes", "steps"), [(4, 2), (5, 4), (16, 4), (17, 6), (64, 6), (1000, 10), (1024, 10)]
)
def test_a_small_sum_of_many_nodes_takes_two_logarithms_of_steps(nodes: int, steps: int) -> None:
    made = ours(Shape(nodes), 256 << 10)
    assert len(made.pieces[0]) == steps
    assert seconds(made, LATENCY_ONLY, Link(1e18)) == pytest.approx(steps, rel=1e-3)


@pytest.mark.parametrize(("ranks", "domains"), [(4, 2), (16, 2), (64, 8)])
def test_what_crosses_the_border_of_a_domain_is_what_a_hand_counts(
    ranks: int, domains: int
) -> None:
    others = domains - 1
    assert crossing(flat(ranks, domains, MIB)) == (ranks * others / domains + others) * MIB
    assert crossing(two_level(ranks, domains, MIB)) == 2 * others * MIB


@pytest.mark.parametrize("nodes", [5, 6, 7, 17, 100, 1000])
def test_in_rounds_each_part_but_one_leaves_a_node_twice(nodes: int) -> None:
    """Once in the sum of it, once on the way to all."""
    size = nodes * PART
    made = ours(Shape(nodes, leader_bytes=1 << 30), size)
    for node in (0, 1, nodes - 1):
        payload = made.sent_bytes(node) - made.messages(node) * FRAME_BYTES
        assert payload == pytest.approx(2 * (size - PART))


def test_messages_to_one_node_wait_for_each_other() -> None:
    """Of four nodes three send at once: a link of each receiver takes one after the other."""
    made = ours(Shape(4, leader_bytes=MIB), MIB)
    assert seconds(made, WIRE_ONLY, LINK) == pytest.approx(2 * 3 / 4, rel=0.01)


def test_the_picture_shows_the_results() -> None:
    assert PICTURE.read_text() == draw(json.loads(RESULTS.read_text()))
