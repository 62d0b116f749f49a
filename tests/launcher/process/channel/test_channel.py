"""The control channel over real loopback sockets: leader and followers on one loop."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from muster.run.base.loop import Loop, Timer
from muster.run.channel.follower import LAST_RETRY_S, Follower
from muster.run.channel.messages import Go, Ready, Registered, Stop
from muster.types.errors import ClusterError
from tests.launcher.support.peers.channel import FAST, SLOW, Channel, Side, channel, identity

__all__ = ["channel"]


def cut(follower: Follower) -> None:
    """Breaks the connection as a network would."""
    assert follower.session.frames is not None
    follower.session.frames.sock.shutdown(socket.SHUT_RDWR)


def test_hosts_with_the_secret_join_and_talk(channel: Channel) -> None:
    leader = channel.lead()
    sides = {host_index: channel.joined(host_index) for host_index in (1, 2)}
    assert [event for event in channel.story.told if event[0] == "joined"] == [
        ("joined", 1),
        ("joined", 2),
    ]
    leader.send_all(Go())
    leader.send(2, Stop(False, "x"))
    sides[1][0].send(Ready("d"))
    channel.until(lambda: bool(channel.story.said_by(1)) and len(sides[2][1].got) == 2)
    assert sides[1][1].got == [Go()]
    assert sides[2][1].got == [Go(), Stop(False, "x")]
    assert channel.story.said_by(1) == [Ready("d")]
    assert sides[1][0].address == channel.address


def test_hosts_join_over_ipv6_and_the_address_decides_without_a_secret(channel: Channel) -> None:
    asked: list[str] = []

    def admits(_host: int, address: str, done: Callable[[bool], None]) -> None:
        asked.append(address)
        done(True)

    channel.address = "::1"
    channel.lead(secret=b"", admits=admits)
    follower, side = channel.follow(1, secret=b"")
    channel.until(lambda: side.joined)
    assert asked == ["::1"]
    assert follower.address == "::1"


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    "fields",
    [
        {"secret": b"another secret..."},
        {"secret": b""},
        {"job": "another-job"},
        {"name": "algo-3"},
        {"host_index": 0, "name": "algo-1"},
        {"host_index": 3, "name": "algo-4"},
        {"host_index": -1, "name": "algo-3"},
    ],
    ids=str,
)
def test_who_is_not_of_the_job_is_refused_and_gives_up_in_time(
    channel: Channel, fields: dict[str, Any]
) -> None:
    channel.lead()
    _, side = channel.follow(1, limit_s=0.6, **fields)
    channel.until(lambda: bool(side.unreachable))
    assert not channel.story.told
    assert not side.joined


@pytest.mark.promise("F23")
def test_a_leader_that_does_not_know_the_secret_is_not_believed(channel: Channel) -> None:
    channel.lead(secret=b"", admits=lambda _host, _address, done: done(True))
    _, side = channel.follow(1, limit_s=0.6)
    channel.until(lambda: bool(side.unreachable))
    assert not side.joined
    assert "not the leader of this job" in side.unreachable


@pytest.mark.parametrize("good", [True, False])
def test_without_a_secret_the_address_decides(channel: Channel, good: bool) -> None:
    asked = []

    def admits(host: int, address: str, done: Callable[[bool], None]) -> None:
        asked.append((host, address))
        channel.loop.after(0.01, lambda: done(good))

    channel.lead(secret=b"", admits=admits)
    _, side = channel.follow(2, secret=b"", limit_s=0.6)
    channel.until(lambda: side.joined or bool(side.unreachable))
    assert side.joined == good
    assert asked[0][0] == 2
    assert asked[0][1].startswith("127.")


def test_a_second_host_of_the_same_place_is_refused(channel: Channel) -> None:
    channel.lead()
    channel.joined(1)
    _, second = channel.follow(1, limit_s=0.6)
    channel.until(lambda: bool(second.unreachable))
    assert channel.story.told == [("joined", 1)]


@pytest.mark.promise("F24")
def test_a_host_with_another_request_is_joined_and_told_apart(channel: Channel) -> None:
    channel.lead()
    _, side = channel.follow(1, agreed={"toolkit": "2" * 5000, "x": "\ud800" * 5000})
    channel.until(lambda: side.joined)
    channel.until(lambda: len(channel.story.told) > 1)
    event = channel.story.told[1]
    assert event[:2] == ("disagrees", 1)
    assert len(str(event[2])) < 1000
    assert "algo-2 has toolkit 2222" in str(event[2])


def test_a_broken_connection_loses_and_repeats_nothing(channel: Channel) -> None:
    leader = channel.lead()
    follower, side = channel.joined(1)
    leader.strict = True
    for number in range(60):
        follower.send(Registered(number))
        leader.send(1, Stop(False, str(number)))
        if number % 10 == 5:
            cut(follower)
            follower.send(Registered(1000 + number))
        channel.run_for(0.01)
    channel.until(lambda: len(side.got) == 60 and len(channel.story.said_by(1)) == 66)
    assert side.got == [Stop(False, str(number)) for number in range(60)]
    said = [message.ranks for message in channel.story.said_by(1)]  # type: ignore[attr-defined]
    assert sorted(said) == sorted([*range(60), *(1000 + n for n in range(5, 60, 10))])
    assert [n for n in said if n < 1000] == list(range(60))
    kinds = [event[0] for event in channel.story.told]
    assert "lost" not in kinds
    assert kinds.count("suspect") == kinds.count("recovered")


def test_a_host_that_does_not_come_back_is_lost(channel: Channel) -> None:
    leader = channel.lead(FAST)
    follower, _ = channel.joined(1, FAST)
    leader.strict = True
    follower.close()
    channel.until(lambda: channel.story.told[-1][0] == "lost")
    assert [event[0] for event in channel.story.told] == ["joined", "suspect", "lost"]


def test_before_the_start_a_place_that_was_left_is_free_again(channel: Channel) -> None:
    channel.lead(FAST)
    follower, _ = channel.joined(1, FAST)
    follower.close()
    channel.until(lambda: ("freed", 1) in channel.story.told)
    _, again = channel.joined(1, FAST)
    assert again.joined


@pytest.mark.clock
@pytest.mark.promise("F34")
def test_a_closed_port_means_a_lost_leader_at_once(channel: Channel) -> None:
    leader = channel.lead()
    _, side = channel.joined(1)
    leader.close()
    began = time.monotonic()
    channel.until(lambda: bool(side.lost))
    assert time.monotonic() - began < 1
    assert side.lost == "its port is closed"


def test_a_name_server_that_never_answers_does_not_hold_the_join_deadline(channel: Channel) -> None:
    _, side = channel.follow(1, resolve=lambda done: None, limit_s=0.3)
    channel.until(lambda: bool(side.unreachable), limit_s=1)


class VirtualLoop(Loop):
    """Waits for nothing: the time is what its timers say."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._pending: list[Timer] = []

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self._pending.append(Timer(self.now_s + delay_s, 0, call))
        return self._pending[-1]

    def pass_all(self) -> None:
        """Calls every timer in its order, until none is left."""
        while self._pending:
            timer = min(self._pending, key=lambda timer: timer.at_s)
            self._pending.remove(timer)
            self.now_s = timer.at_s
            if timer.call is not None:
                timer.call()


@pytest.mark.promise("F22")
def test_a_name_that_resolves_to_nothing_is_asked_for_again_within_two_seconds() -> None:
    """Soon at first, then every 2 s, and no more once the time to join is over."""
    loop, side, join_s = VirtualLoop(), Side(), 900.0
    asked_s: list[float] = []

    def resolve(done: Callable[[Sequence[str]], None]) -> None:
        asked_s.append(loop.now_s)
        done([])

    try:
        Follower(loop, identity(1), resolve, 1, "", SLOW, side).join(join_s)
        loop.pass_all()
    finally:
        loop.close()
    gaps_s = [later - earlier for earlier, later in pairwise(asked_s)]
    assert LAST_RETRY_S == 2
    assert max(gaps_s) == pytest.approx(LAST_RETRY_S)
    assert gaps_s[0] < 0.1
    assert join_s / LAST_RETRY_S < len(asked_s) < join_s / LAST_RETRY_S + 20
    assert join_s - LAST_RETRY_S <= asked_s[-1] <= join_s
    assert side.unreachable == "its name does not resolve"


def test_a_peer_that_never_speaks_does_not_hold_the_join_deadline(channel: Channel) -> None:
    mute = socket.create_server((channel.address, channel.port))
    channel.sockets.append(mute)
    _, side = channel.follow(1, limit_s=0.3)
    channel.until(lambda: bool(side.unreachable), limit_s=1)


def test_the_second_address_of_a_name_is_tried(channel: Channel) -> None:
    channel.lead()
    wrong = socket.create_server(("127.0.0.1", channel.port))
    channel.sockets.append(wrong)
    wrong.close()
    addresses = ["127.0.0.1", channel.address]
    _, side = channel.follow(1, resolve=lambda done: done(addresses))
    channel.until(lambda: side.joined)


def test_the_clock_of_the_leader_is_known_to_a_millisecond(channel: Channel) -> None:
    channel.lead(FAST)
    follower, _ = channel.joined(1, FAST)
    channel.run_for(10 * FAST.heartbeat_s)  # the best of its heartbeats counts
    assert 0 < abs(follower.clock_offset_s) < 0.01


def test_a_port_that_is_held_is_named(channel: Channel) -> None:
    channel.sockets.append(socket.create_server((channel.address, channel.port)))
    with pytest.raises(ClusterError, match=f"{channel.address}:{channel.port} cannot be bound"):
        channel.lead()


@pytest.mark.clock
@pytest.mark.promise("F27")
def test_a_leader_that_does_not_answer_any_more_is_lost_within_the_time_to_come_back(
    channel: Channel,
) -> None:
    """Its machine is gone: no connection is refused, none is made."""
    leader = channel.lead(FAST)
    _, side = channel.joined(1, FAST)
    leader.close()
    with silent_listener(channel.address, channel.port):
        began_s = time.monotonic()
        channel.until(lambda: bool(side.lost), limit_s=4)
        took_s = time.monotonic() - began_s
    assert "no answer in" in side.lost
    assert took_s < FAST.reconnect_s + 1.0


@contextmanager
def silent_listener(address: str, port: int) -> Iterator[None]:
    """Takes no connection: its queue is full, and the kernel drops whoever knocks."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(0)
    queue = []
    try:
        while True:
            sock = socket.socket()
            queue.append(sock)
            sock.settimeout(0.2)
            try:
                sock.connect((address, port))
            except TimeoutError:
                break
        yield
    finally:
        for sock in (*queue, listener):
            sock.close()
