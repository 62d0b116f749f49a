"""The control channel against peers that flood, lie, replay and talk nonsense (S03, S19)."""

from __future__ import annotations

import random
import socket
import time
import tracemalloc

import pytest

from muster.run import wire
from muster.run.follower import Follower
from muster.run.identity import PROTOCOL
from muster.run.leader import PENDING_LIMIT
from muster.run.messages import Go, Ready
from tests.support.channel import SLOW, Channel, Side, channel, identity
from tests.support.effort import collect_garbage, effort

__all__ = ["channel"]


@pytest.mark.promise("S19")
def test_two_thousand_idle_connections_neither_grow_nor_keep_a_host_out(channel: Channel) -> None:
    leader = channel.lead()
    collect_garbage()
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
        collect_garbage()
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
