"""Many hosts that come at once, over real sockets."""

from __future__ import annotations

import pytest

from benchmarks.launcher.load import measure
from muster.run.channel.leader import PENDING_LIMIT, Leader
from tests.launcher.support.peers.channel import SLOW, Channel, channel, identity

__all__ = ["channel"]

HOSTS = 3 * PENDING_LIMIT


@pytest.mark.promise("S19")
def test_as_many_connections_may_wait_as_there_are_hosts_and_no_more(channel: Channel) -> None:
    names = [f"algo-{i + 1}" for i in range(HOSTS)]
    leader = Leader(channel.loop, identity(0), names, SLOW, channel.story, lambda *_: None)
    channel.leader = leader
    leader.listen(channel.address, channel.port)
    for _ in range(HOSTS):
        channel.connect()
    channel.until(lambda: leader.waiting == HOSTS)
    first = channel.sockets[0]
    channel.connect()
    assert channel.read_to_end(first)  # the challenge, and then the end
    assert leader.waiting == HOSTS


def test_a_crowd_of_hosts_goes_through_a_whole_job() -> None:
    load = measure(HOSTS, heartbeats_s=0)
    assert load.hosts == HOSTS
    assert 0 < load.join_s <= load.go_s < 15
    assert load.peak_kib < 64
    assert load.stop_s <= load.leave_s < 5
