"""Barriers of many hosts: right in any order of arrival, and cheap."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.run.job.coordinator import Barrier

HOSTS = 1000


class Peer:
    joined = False


def peers(count: int) -> list[Peer]:
    return [Peer() for _ in range(count)]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40))
def test_it_is_met_exactly_when_all_have_passed(steps: Sequence[tuple[int, bool]]) -> None:
    hosts = peers(5)
    barrier = Barrier(hosts, lambda peer: peer.joined)
    for place, joins in steps:
        hosts[place] = Peer()
        hosts[place].joined = joins
        assert barrier.met() == all(peer.joined for peer in hosts)


ORDERS = {
    "first to last": list(range(HOSTS)),
    "last to first": list(reversed(range(HOSTS))),
    "any": random.Random(1).sample(range(HOSTS), HOSTS),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_asking_after_each_of_many_arrivals_takes_a_few_looks_each(order: Sequence[int]) -> None:
    looks = 0

    def passed(peer: Peer) -> bool:
        nonlocal looks
        looks += 1
        return peer.joined

    hosts = peers(HOSTS)
    barrier = Barrier(hosts, passed)
    for place in order:
        assert not barrier.met()
        hosts[place].joined = True
    assert barrier.met()
    assert looks < 6 * HOSTS
