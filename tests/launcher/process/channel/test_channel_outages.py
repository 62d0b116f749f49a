"""Connections that stop carrying anything without an end: new ones are tried beside them."""

from __future__ import annotations

import socket

import pytest

from muster.run.channel import wire
from muster.run.channel.follower import Follower
from muster.run.channel.identity import PROTOCOL
from muster.run.channel.messages import Go, Ready, Registered, Stop
from muster.types.deadlines import Deadlines
from tests.launcher.support.peers.channel import FAST, Channel, Side, channel, identity

__all__ = ["channel"]
BEAT_S = 0.1
PATIENT = Deadlines(heartbeat_s=BEAT_S, lost_after_s=30.0, reconnect_s=2.0)


class Road:
    """The path from a follower to the leader, on their own loop. A connection that is `held`
    carries nothing and does not end; what was sent comes through when it is let go."""

    def __init__(self, channel: Channel) -> None:
        self.hold_new = False
        self.ends_after_hello = False  # the next connection; all that come after it are held
        self.sent: list[bytearray] = []  # by the follower, on each connection
        self._channel = channel
        self._moving: list[tuple[socket.socket, socket.socket, bytearray | None]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        channel.sockets.append(self._listener)
        channel.loop.watch(self._listener.fileno(), self._accept)

    def follow(self, deadlines: Deadlines = PATIENT) -> tuple[Follower, Side]:
        side, here = Side(), ["127.0.0.1"]
        port = self._listener.getsockname()[1]
        follower = Follower(
            self._channel.loop, identity(1), lambda done: done(here), port, "", deadlines, side
        )
        self._channel.followers.append(follower)
        follower.join(5)
        self._channel.until(lambda: side.joined)
        return follower, side

    def hold(self) -> None:
        for source, _, _ in self._moving:
            self._channel.loop.forget(source.fileno())

    def let_go(self) -> None:
        for moving in self._moving:
            self._watch(*moving)

    def let_go_of_first(self) -> None:
        for moving in self._moving[:2]:
            self._watch(*moving)

    def open_ends(self) -> int:
        return sum(source.fileno() >= 0 for source, _, _ in self._moving)

    def _accept(self, _events: int) -> None:
        near, _ = self._listener.accept()
        far = self._channel.connect()
        self._channel.sockets.append(near)
        self.sent.append(bytearray())
        both = [(near, far, self.sent[-1]), (far, near, None)]
        self._moving += both
        for moving in both:
            moving[0].setblocking(False)
            if not self.hold_new:
                self._watch(*moving)

    def _watch(self, source: socket.socket, sink: socket.socket, seen: bytearray | None) -> None:
        def move(_events: int) -> None:
            try:
                data = source.recv(1 << 16)
                if self.ends_after_hello and seen and not self.hold_new:
                    self.hold_new, data = True, b""
                if seen is not None:
                    seen.extend(data)
                sink.sendall(data)
            except OSError:
                data = b""
            if not data:
                self._channel.loop.forget(source.fileno())
                source.close()
                sink.close()

        if source.fileno() >= 0:
            self._channel.loop.watch(source.fileno(), move)


def kinds(channel: Channel) -> set[object]:
    return {event[0] for event in channel.story.told}


@pytest.mark.promise("F28")
def test_a_silent_host_is_lost_and_a_silent_leader_too(channel: Channel) -> None:
    leader = channel.lead(FAST)
    road = Road(channel)
    _, side = road.follow(FAST)
    leader.strict = True
    road.hold()
    road.hold_new = True
    channel.until(lambda: bool(side.lost) and channel.story.told[-1][0] == "lost")
    assert "no heartbeat for" in side.lost
    assert "no heartbeat for" in str(channel.story.told[-1][2])


@pytest.mark.promise("F30")
def test_a_connection_that_carries_nothing_is_replaced_and_loses_nothing(channel: Channel) -> None:
    leader = channel.lead(PATIENT)
    road = Road(channel)
    follower, side = road.follow()
    leader.strict = True
    road.hold()
    road.hold_new = True
    for number in range(20):
        follower.send(Registered(number))
        leader.send(1, Stop(False, str(number)))
        channel.run_for(BEAT_S / 4)
    assert channel.story.said_by(1) == side.got == []
    road.hold_new = False  # only the old connections still wait
    channel.until(lambda: len(side.got) == 20 and len(channel.story.said_by(1)) == 20)
    road.let_go()  # what was under way comes too late
    follower.send(Registered(20))
    channel.until(lambda: len(channel.story.said_by(1)) == 21)
    channel.run_for(2 * BEAT_S)
    assert channel.story.said_by(1) == [Registered(number) for number in range(21)]
    assert side.got == [Stop(False, str(number)) for number in range(20)]
    assert kinds(channel) == {"joined", "said"}
    tried = len(road.sent)
    channel.run_for(3 * BEAT_S)
    assert len(road.sent) == tried
    assert road.open_ends() == 2  # of one connection


@pytest.mark.promise("F30")
def test_a_connection_that_wakes_up_is_used_on(channel: Channel) -> None:
    leader = channel.lead(PATIENT)
    road = Road(channel)
    follower, side = road.follow()
    leader.strict = True
    road.hold()
    road.hold_new = True
    follower.send(Registered(1))
    channel.until(lambda: len(road.sent) > 1)  # new ones are tried
    road.hold_new = False  # the last may not have been accepted yet
    road.let_go()
    channel.until(lambda: channel.story.said_by(1) == [Registered(1)])
    channel.until(lambda: road.open_ends() == 2)
    leader.send(1, Go())
    channel.until(lambda: side.got == [Go()])
    assert kinds(channel) == {"joined", "said"}


@pytest.mark.promise("F30")
def test_a_new_connection_that_ends_unspoken_gives_way_to_the_older_one(channel: Channel) -> None:
    """As a cut of one direction right after a hello leaves it: the leader's welcome arrives, no
    further word of the host does, and the leader gives the connection up."""
    leader = channel.lead(PATIENT)
    road = Road(channel)
    follower, side = road.follow()
    leader.strict = True
    road.hold()
    road.ends_after_hello = True
    channel.until(lambda: road.hold_new)
    follower.send(Registered(1))
    channel.run_for(2 * PATIENT.reconnect_s)
    assert not side.lost
    road.let_go_of_first()
    follower.send(Registered(2))
    leader.send(1, Go())
    channel.until(lambda: side.got == [Go()])
    channel.until(lambda: channel.story.said_by(1) == [Registered(1), Registered(2)])
    assert kinds(channel) == {"joined", "said"}


def said(channel: Channel, sock: socket.socket) -> list[object]:
    """What the leader says next."""
    data = bytearray()
    channel.loop.watch(sock.fileno(), lambda _events: data.extend(sock.recv(4096)))
    channel.until(lambda: data.endswith(b"]"))
    channel.loop.forget(sock.fileno())
    return wire.decode(bytes(data[4:]))


def come_back(channel: Channel, key: bytes, received: int = 0) -> socket.socket:
    """A connection that says it is algo-2 and holds the key, with a proof for `received` 0."""
    sock = channel.connect()
    nonce, mine = bytes.fromhex(str(said(channel, sock)[2])), bytes(wire.NONCE_BYTES)
    proof = wire.resume_proof(key, (nonce, mine, b"1"), 0)
    hello = ["hello", PROTOCOL, "a-job", 1, "algo-2", {}, mine.hex(), proof, True, received]
    payload = wire.encode(hello)
    sock.sendall(len(payload).to_bytes(4, "big") + payload)
    return sock


@pytest.mark.promise("F30")
def test_a_connection_that_never_speaks_takes_the_place_of_none(channel: Channel) -> None:
    """Of several that a host tries, all but one end; the leader goes on with the one that works."""
    leader = channel.lead(PATIENT)
    follower, side = channel.joined(1, PATIENT)
    leader.strict = True
    for _ in range(3):
        sock = come_back(channel, follower.job_key)
        assert said(channel, sock)[0] == "welcome"
        leader.send(1, Go())
        follower.send(Ready("d"))
        sock.close()
    channel.until(lambda: len(side.got) == len(channel.story.said_by(1)) == 3)
    assert kinds(channel) == {"joined", "said"}


@pytest.mark.promise("S03")
def test_the_words_of_a_connection_that_came_back_prove_nothing_elsewhere(
    channel: Channel,
) -> None:
    leader = channel.lead(PATIENT)
    road = Road(channel)
    follower, side = road.follow()
    leader.strict = True
    road.hold()
    channel.until(lambda: len(road.sent) > 1)  # the next one passes
    follower.send(Ready("d"))
    channel.until(lambda: channel.story.said_by(1) == [Ready("d")])
    channel.story.told.clear()
    for said in road.sent:
        sock = channel.connect()
        sock.sendall(bytes(said))
        assert channel.read_to_end(sock).count(b'["') == 1  # the challenge
    leader.send(1, Go())
    channel.until(lambda: side.got == [Go()])
    assert not channel.story.told


@pytest.mark.promise("S03")
def test_what_a_host_says_that_it_has_received_is_proved(channel: Channel) -> None:
    """Somebody on the path could else make the leader forget what never arrived."""
    leader = channel.lead(PATIENT)
    follower, side = channel.joined(1, PATIENT)
    sock = come_back(channel, follower.job_key, received=1)
    assert channel.read_to_end(sock) == b""
    leader.send(1, Go())
    channel.until(lambda: side.got == [Go()])
