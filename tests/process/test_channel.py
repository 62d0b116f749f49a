"""The control channel over real loopback sockets: leader and followers on one loop."""

from __future__ import annotations

import gc
import os
import random
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from muster.run import wire
from muster.run.follower import Follower
from muster.run.identity import PROTOCOL, Identity
from muster.run.leader import PENDING_LIMIT, Leader
from muster.run.loop import Loop
from muster.run.messages import Go, Message, Ready, Registered, Stop, ToLeader
from muster.spec.deadlines import Deadlines
from tests.support.cluster import free_ports
from tests.support.effort import effort

NAMES = ("algo-1", "algo-2", "algo-3")
SECRET = b"sixteen bytes...."
FAST = Deadlines(heartbeat_s=0.05, lost_after_s=0.4, reconnect_s=0.5, join_s=1.0)
SLOW = Deadlines(heartbeat_s=0.2, lost_after_s=30.0, reconnect_s=2.0, join_s=20.0)


def identity(place: int, **fields: Any) -> Identity:
    made = Identity("a-job", NAMES[place], place, {"toolkit": "1"}, SECRET)
    return made._replace(**fields)


class Story:
    """What the leader's end told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def peer_joined(self, host: int) -> None:
        self.told.append(("joined", host))

    def peer_disagrees(self, host: int, what: str) -> None:
        self.told.append(("disagrees", host, what))

    def peer_said(self, host: int, message: ToLeader) -> None:
        self.told.append(("said", host, message))

    def peer_suspect(self, host: int) -> None:
        self.told.append(("suspect", host))

    def peer_recovered(self, host: int) -> None:
        self.told.append(("recovered", host))

    def peer_freed(self, host: int) -> None:
        self.told.append(("freed", host))

    def peer_lost(self, host: int, last_heard: float, why: str) -> None:
        self.told.append(("lost", host, why))

    def said_by(self, host: int) -> list[object]:
        return [event[2] for event in self.told if event[:2] == ("said", host)]


class Side:
    """What a follower's end told."""

    def __init__(self) -> None:
        self.joined = False
        self.got: list[Message] = []
        self.unreachable = ""
        self.lost = ""

    def leader_joined(self) -> None:
        self.joined = True

    def leader_unreachable(self, why: str) -> None:
        self.unreachable = why

    def leader_said(self, message: Message) -> None:
        self.got.append(message)

    def leader_lost(self, why: str) -> None:
        self.lost = why


class Channel:
    """A loop, a leader on it, and whatever connects to it."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.story = Story()
        self.address = f"127.{random.randint(20, 250)}.{random.randint(1, 250)}.1"
        self.port = free_ports(1)[0]
        self.leader: Leader | None = None
        self.followers: list[Follower] = []
        self.sockets: list[socket.socket] = []

    def lead(
        self,
        deadlines: Deadlines = SLOW,
        admits: Callable[[int, str, Callable[[bool], None]], None] | None = None,
        **fields: Any,
    ) -> Leader:
        def refuse(host: int, address: str, done: Callable[[bool], None]) -> None:
            raise AssertionError("asked although there is a secret")

        me = identity(0, **fields)
        self.leader = Leader(self.loop, me, NAMES, deadlines, self.story, admits or refuse)
        self.leader.listen(self.address, self.port)
        return self.leader

    def follow(
        self,
        place: int = 1,
        deadlines: Deadlines = SLOW,
        resolve: Callable[[Callable[[Sequence[str]], None]], None] | None = None,
        limit_s: float = 20.0,
        **fields: Any,
    ) -> tuple[Follower, Side]:
        side = Side()
        me = identity(place, **fields)
        find = resolve or (lambda done: done([self.address]))
        follower = Follower(self.loop, me, find, self.port, "", deadlines, side)
        self.followers.append(follower)
        follower.join(limit_s)
        return follower, side

    def joined(self, place: int = 1, deadlines: Deadlines = SLOW) -> tuple[Follower, Side]:
        follower, side = self.follow(place, deadlines)
        self.until(lambda: side.joined)
        return follower, side

    def connect(self) -> socket.socket:
        sock = socket.socket()
        sock.settimeout(5)
        sock.connect((self.address, self.port))
        self.sockets.append(sock)
        return sock

    def until(self, condition: Callable[[], bool], limit_s: float = 5.0) -> None:
        """Runs the loop until the condition holds; fails when that takes too long."""
        end = time.monotonic() + limit_s

        def look() -> None:
            if condition() or time.monotonic() >= end:
                self.loop.stop()
            else:
                self.loop.after(0.005, look)

        look_at_once = self.loop.after(0, look)
        self.loop.run()
        look_at_once.cancel()
        assert condition(), self.story.told

    def read_to_end(self, sock: socket.socket) -> bytes:
        """What the leader says until it closes the connection."""
        pieces: list[bytes] = []

        def read(_events: int) -> None:
            pieces.append(sock.recv(4096))
            if not pieces[-1]:
                self.loop.forget(sock.fileno())

        self.loop.watch(sock.fileno(), read)
        self.until(lambda: bool(pieces) and not pieces[-1], limit_s=2)
        return b"".join(pieces)

    def run_for(self, seconds: float) -> None:
        self.loop.after(seconds, self.loop.stop)
        self.loop.run()

    def close(self) -> None:
        for follower in self.followers:
            follower.close()
        if self.leader is not None:
            self.leader.close()
        for sock in self.sockets:
            sock.close()
        self.loop.close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    before = set(os.listdir("/proc/self/fd"))
    made = Channel()
    try:
        yield made
    finally:
        made.close()
    del made
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before), "descriptors leaked"


def cut(follower: Follower) -> None:
    """Breaks the connection as a network would."""
    assert follower._session.frames is not None
    follower._session.frames.sock.shutdown(socket.SHUT_RDWR)


def test_hosts_with_the_secret_join_and_talk(channel: Channel) -> None:
    leader = channel.lead()
    sides = {position: channel.joined(position) for position in (1, 2)}
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


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    "fields",
    [
        {"secret": b"another secret..."},
        {"secret": b""},
        {"job": "another-job"},
        {"name": "algo-3"},
        {"position": 0, "name": "algo-1"},
        {"position": 3, "name": "algo-4"},
        {"position": -1, "name": "algo-3"},
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


@pytest.mark.promise("F28")
def test_a_silent_host_is_lost_and_a_silent_leader_too(channel: Channel) -> None:
    leader = channel.lead(FAST)
    follower, side = channel.joined(1, FAST)
    leader.strict = True
    assert follower._session.frames is not None
    channel.loop.forget(follower._session.frames.sock.fileno())  # it reads no more
    follower._session.frames.send = lambda message: None  # type: ignore[method-assign]
    channel.until(lambda: bool(side.lost) and channel.story.told[-1][0] == "lost")
    assert "no heartbeat for" in side.lost
    assert "no heartbeat for" in str(channel.story.told[-1][2])


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
    channel.until(lambda: follower._best_rtt_s < 1)
    assert abs(follower.clock_offset_s) < 0.01


@pytest.mark.promise("S19")
def test_two_thousand_idle_connections_neither_grow_nor_keep_a_host_out(channel: Channel) -> None:
    leader = channel.lead()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        most = 0
        for batch in range(20):
            idle = [channel.connect() for _ in range(100)]
            channel.run_for(0.01)
            most = max(most, len(leader._pending))
            if batch == 10:
                _, side = channel.joined(1)
                assert side.joined
            for sock in idle:
                sock.close()
        assert most <= PENDING_LIMIT
        channel.run_for(0.05)
        channel.sockets.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 3 << 20
    finally:
        tracemalloc.stop()
    channel.until(lambda: len(leader._pending) <= PENDING_LIMIT)


@pytest.mark.effort
@pytest.mark.promise("S03")
def test_garbage_harms_nobody(channel: Channel) -> None:
    leader = channel.lead()
    _, side = channel.joined(1)
    source = random.Random(5 * effort())
    end = time.monotonic() + 2 * effort()
    hello = wire.encode(hello_of(channel))
    shots = 0
    while time.monotonic() < end:
        sock = channel.connect()
        shot = source.choice(
            [
                source.randbytes(source.randint(1, 300)),
                framed(source.randbytes(source.randint(1, 300))),
                framed(mutated(hello, source)),
                framed(hello[: source.randint(1, len(hello))]),
                framed(hello) * 20,
                (2**32 - 1).to_bytes(4, "big"),
                (wire.FRAME_LIMIT_BYTES + 1).to_bytes(4, "big") + b"x" * 1000,
            ]
        )
        try:
            sock.sendall(shot)
        except OSError:
            pass
        channel.run_for(0.002)
        if source.random() < 0.9:
            sock.close()
        shots += 1
    assert shots > 100
    assert not side.lost
    leader.send(1, Go())
    channel.until(lambda: side.got == [Go()])
    assert [event for event in channel.story.told if event[0] != "said"] == [("joined", 1)]


def hello_of(channel: Channel, **fields: object) -> list[object]:
    parts = {
        "name": "hello",
        "protocol": PROTOCOL,
        "job": "a-job",
        "position": 2,
        "host": "algo-3",
        "agreed": {},
        "nonce": "00" * 16,
        "proof": "ab" * 32,
        "resume": False,
        "received": 0,
    }
    return list({**parts, **fields}.values())


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def mutated(payload: bytes, source: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    "fields",
    [
        {"proof": "\ud800"},
        {"proof": "\ud800", "resume": True, "position": 1, "host": "algo-2"},
        {"proof": None},
        {"nonce": "zz"},
        {"nonce": 5},
        {"nonce": "\ud800"},
        {"position": True},
        {"position": 2.0},
        {"position": [2]},
        {"agreed": []},
        {"agreed": {"x": None}},
        {"received": "0"},
        {"resume": "yes"},
        {"protocol": 99},
        {"name": "goodbye"},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_malformed_hello_is_dropped_without_a_word(
    channel: Channel, fields: dict[str, object]
) -> None:
    channel.lead()
    channel.joined(1)
    sock = channel.connect()
    sock.sendall(framed(wire.encode(hello_of(channel, **fields))))
    data = channel.read_to_end(sock)
    assert data[4:].startswith(b'["challenge"')
    assert data.count(b"[") == 1
    assert channel.story.told == [("joined", 1)]


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    "payload",
    [
        ["h"],
        ["h", 0],
        ["h", 0, "soon"],
        ["h", 0, [1]],
        ["h", 1e999, 0.5],
        ["m", 1, 0],
        ["m", 7, 0, ["Go"]],
        ["m", 1, 0, ["Report", 5, 6]],
        ["m", 1, 0, "Go"],
        ["m", 1e999, 0, ["Go"]],
    ],
    ids=str,
)
def test_an_admitted_peer_that_sends_nonsense_is_dropped_and_the_leader_lives(
    channel: Channel, payload: list[object]
) -> None:
    channel.lead()
    follower, side = channel.joined(1)
    assert follower._session.frames is not None
    follower._session.frames.send(payload)
    channel.until(lambda: ("suspect", 1) in channel.story.told)
    channel.until(lambda: ("recovered", 1) in channel.story.told)  # the true host comes back
    assert not side.lost


@pytest.mark.parametrize("payload", [["e"], ["e", 0], ["e", 0, "x", 1.0], ["e", 0, 1.0]], ids=str)
def test_a_leader_that_sends_nonsense_is_dropped(channel: Channel, payload: list[object]) -> None:
    leader = channel.lead()
    channel.joined(1)
    frames = leader._peers[1].session.frames
    assert frames is not None
    frames.send(payload)
    channel.until(lambda: ("recovered", 1) in channel.story.told)


@pytest.mark.promise("S03")
def test_a_replayed_hello_is_refused(channel: Channel) -> None:
    """All that a follower ever sent, sent again on a new connection: it proves nothing."""
    channel.lead()
    listener = socket.create_server(("127.0.0.1", 0))
    channel.sockets.append(listener)
    seen = bytearray()

    def pair(_events: int) -> None:
        near, _ = listener.accept()
        far = channel.connect()
        for sock in (near, far):
            sock.setblocking(False)
            channel.sockets.append(sock)

        def move(source: socket.socket, target: socket.socket, keep: bool) -> None:
            data = source.recv(1 << 16)
            if keep:
                seen.extend(data)
            target.sendall(data)

        channel.loop.watch(near.fileno(), lambda _e: move(near, far, True))
        channel.loop.watch(far.fileno(), lambda _e: move(far, near, False))

    channel.loop.watch(listener.fileno(), pair)
    side = Side()
    follower = Follower(
        channel.loop,
        identity(1),
        lambda done: done(["127.0.0.1"]),
        listener.getsockname()[1],
        "",
        SLOW,
        side,
    )
    channel.followers.append(follower)
    follower.join(5)
    channel.until(lambda: side.joined)
    follower.send(Ready("d"))
    channel.until(lambda: bool(channel.story.said_by(1)))
    channel.story.told.clear()
    again = channel.connect()
    again.sendall(bytes(seen))
    channel.run_for(0.2)
    assert not [event for event in channel.story.told if event[0] != "suspect"]


def test_a_port_that_is_held_is_named(channel: Channel) -> None:
    from muster.spec.errors import ClusterError

    channel.sockets.append(socket.create_server((channel.address, channel.port)))
    with pytest.raises(ClusterError, match=f"{channel.address}:{channel.port} cannot be bound"):
        channel.lead()
