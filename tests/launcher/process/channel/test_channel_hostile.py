"""The control channel against peers that flood, lie, replay and talk nonsense (S03, S19)."""

from __future__ import annotations

import random
import socket
import time
import tracemalloc
from collections.abc import Callable

import pytest

from muster.run.channel import wire
from muster.run.channel.follower import Follower
from muster.run.channel.identity import PROTOCOL
from muster.run.channel.leader import PENDING_LIMIT
from muster.run.channel.messages import Go, Ready
from muster.types.machine import HostFacts
from tests.launcher.support.peers.channel import SLOW, Channel, Side, channel, identity
from tests.support.effort import chance, collect_garbage, effort

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
    source = chance()
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
        "host_index": 2,
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
        {"proof": "\ud800", "resume": True, "host_index": 1, "host": "algo-2"},
        {"proof": None},
        {"nonce": "zz"},
        {"nonce": 5},
        {"nonce": "\ud800"},
        {"host_index": True},
        {"host_index": 2.0},
        {"host_index": [2]},
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


FORGED_FACTS = list(HostFacts(0, "10.9.9.9", "eth0", 1, 0, 0, False, True, "c", "1", "3.11"))


@pytest.mark.promise("S03")
@pytest.mark.promise("S17")
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
        ["m", 1, 0, ["Go"]],
        ["m", 1, 0, ["Verdict", ["Succeeded", 0, "all is well"]]],
        ["m", 1, 0, ["Ready", "digest", {"LD_PRELOAD": "/x.so"}]],
        ["m", 1, 0, ["Ready", "digest"], {"LD_PRELOAD": "/x.so"}],
        ["m", 1, 0, ["Environment", {"LD_PRELOAD": "/x.so"}]],
        ["m", 1, 0, ["StagedHost", FORGED_FACTS]],
        ["h", 0, 0.5, {"PYTHONPATH": "/x"}],
        ["e", 0, 0.5, 0.5],
        ["x", 0],
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
    assert channel.story.said_by(1) == []


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


@pytest.mark.promise("S03")
def test_of_two_whose_name_is_looked_up_at_the_same_time_one_is_admitted(channel: Channel) -> None:
    """Without a secret, also across the barrier: the second answer finds the place taken."""
    waiting: list[Callable[[bool], None]] = []
    leader = channel.lead(secret=b"", admits=lambda _host, _address, done: waiting.append(done))
    first, second = (channel.connect() for _ in range(2))
    for sock in (first, second):
        sock.sendall(framed(wire.encode(hello_of(channel, proof=""))))
    channel.until(lambda: len(waiting) == 2)
    waiting[0](True)
    leader.strict = True
    waiting[1](True)
    assert channel.story.told == [("joined", 2)]
    assert b"welcome" not in channel.read_to_end(second)
    assert leader._peers[2].session.frames is not None


@pytest.mark.promise("S19")
def test_a_stranger_is_not_read_beyond_one_small_frame(channel: Channel) -> None:
    leader = channel.lead()
    sock = channel.connect()
    sock.sendall((wire.HELLO_LIMIT_BYTES).to_bytes(4, "big") + b"x" * (wire.HELLO_LIMIT_BYTES - 1))
    channel.until(lambda: bool(leader._pending))
    channel.run_for(0.1)
    (waits,) = leader._pending
    assert len(waits.frames.opener._data) == wire.HEADER_BYTES + wire.HELLO_LIMIT_BYTES - 1
    another = channel.connect()
    another.sendall((wire.HELLO_LIMIT_BYTES + 1).to_bytes(4, "big"))
    assert channel.read_to_end(another)  # the challenge, and then the end


@pytest.mark.promise("S19")
def test_a_flood_leaves_no_trail_of_timers(channel: Channel) -> None:
    channel.lead()
    for _ in range(300):
        channel.connect().close()
        channel.run_for(0.001)
    assert len(channel.loop._timers) < 50
