"""The control channel against peers that flood, lie, replay and talk nonsense (S03, S19)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.run.channel import wire
from muster.run.channel.identity import PROTOCOL
from muster.types.machine import HostFacts
from tests.launcher.support.peers.channel import Channel, channel

__all__ = ["channel"]


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
    assert follower.session.frames is not None
    follower.session.frames.send(payload)
    channel.until(lambda: ("suspect", 1) in channel.story.told)
    channel.until(lambda: ("recovered", 1) in channel.story.told)  # the true host comes back
    assert not side.lost
    assert channel.story.said_by(1) == []


@pytest.mark.parametrize("payload", [["e"], ["e", 0], ["e", 0, "x", 1.0], ["e", 0, 1.0]], ids=str)
def test_a_leader_that_sends_nonsense_is_dropped(channel: Channel, payload: list[object]) -> None:
    leader = channel.lead()
    channel.joined(1)
    frames = leader.session(1).frames
    assert frames is not None
    frames.send(payload)
    channel.until(lambda: ("recovered", 1) in channel.story.told)


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
    assert leader.session(2).frames is not None


@pytest.mark.promise("S19")
def test_a_stranger_that_announces_more_than_a_small_frame_is_dropped(channel: Channel) -> None:
    channel.lead()
    stranger = channel.connect()
    stranger.sendall((wire.HELLO_LIMIT_BYTES + 1).to_bytes(4, "big"))
    assert channel.read_to_end(stranger)  # the challenge, and then the end
