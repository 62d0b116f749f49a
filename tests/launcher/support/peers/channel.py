"""A leader and followers over real loopback sockets, on one loop, and what their ends tell."""

from __future__ import annotations

import gc
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from muster.run.base.loop import Loop
from muster.run.channel.follower import Follower
from muster.run.channel.identity import Identity
from muster.run.channel.leader import Leader
from muster.run.channel.messages import Message, Question, ToLeader
from muster.types.deadlines import Deadlines
from tests.support.ports import free_ports, open_claims

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

    def peer_said(self, host: int, message: ToLeader | Question) -> None:
        self.told.append(("said", host, message))

    def peer_silent(self, host: int, silent_s: float) -> None:
        self.told.append(("silent", host))

    def peer_heard_again(self, host: int) -> None:
        self.told.append(("heard again", host))

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
        self.silences = 0

    def leader_joined(self) -> None:
        self.joined = True

    def leader_unreachable(self, why: str) -> None:
        self.unreachable = why

    def leader_said(self, message: Message) -> None:
        self.got.append(message)

    def leader_silent(self, silent_s: float) -> None:
        self.silences += 1

    def leader_heard_again(self) -> None: ...

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
    open_claims()  # a descriptor that stays
    before = set(os.listdir("/proc/self/fd"))
    made = Channel()
    try:
        yield made
    finally:
        made.close()
    del made
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before), "descriptors leaked"
