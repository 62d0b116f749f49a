"""Numbered messages over connections that break: nothing is lost, nothing comes twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.run.channel.follower import Follower
from muster.run.channel.messages import Message, Ready, Registered, WireError
from muster.run.channel.session import Session
from muster.run.channel.wire import decode
from muster.types.deadlines import Deadlines


class Line:
    """One direction of a connection: what is sent waits here until it is delivered."""

    def __init__(self) -> None:
        self.waiting: list[list[object]] = []
        self.open = True

    def send_payload(self, payload: bytes) -> None:
        if self.open:
            self.waiting.append(decode(payload))

    def close(self) -> None:
        self.open = False


class Pair:
    """Two sessions and the lines between them."""

    def __init__(self) -> None:
        self.got: tuple[list[Message], list[Message]] = ([], [])
        self.ends = tuple(Session(got.append) for got in self.got)
        self.lines: list[Line] = []
        self.connect()

    def connect(self) -> None:
        self.lines = [Line(), Line()]
        for i in (0, 1):
            self.ends[i].detach()
        heard = [end.received for end in self.ends]
        for i in (0, 1):
            self.ends[i].attach(self.lines[i], heard[1 - i])  # type: ignore[arg-type]

    def deliver(self, sender: int, count: int) -> None:
        line = self.lines[sender]
        for _ in range(min(count, len(line.waiting))):
            self.ends[1 - sender].take(line.waiting.pop(0))

    def cut(self) -> None:
        for i in (0, 1):
            self.lines[i].close()
            self.lines[i].waiting.clear()
            self.ends[i].detach()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1)),
        st.tuples(st.just("deliver"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("cut")),
        st.tuples(st.just("connect")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps)
def test_nothing_is_lost_and_nothing_comes_twice(plan: list[Any]) -> None:
    pair = Pair()
    sent: tuple[list[Message], list[Message]] = ([], [])
    for name, *values in plan:
        if name == "send":
            message = Registered(len(sent[values[0]]))
            sent[values[0]].append(message)
            pair.ends[values[0]].send(message)
        elif name == "deliver":
            pair.deliver(*values)
        elif name == "cut":
            pair.cut()
        else:
            pair.connect()
        for i in (0, 1):
            assert pair.got[1 - i] == sent[i][: len(pair.got[1 - i])]
    pair.connect()
    for i in (0, 1, 0, 1):
        pair.deliver(i, 1000)
    assert pair.got == (sent[1], sent[0])


def test_messages_that_arrived_are_not_kept() -> None:
    pair = Pair()
    for number in range(1000):
        pair.ends[0].send(Registered(number))
        pair.deliver(0, 1)
        pair.ends[1].send(Ready("x"))
        pair.deliver(1, 1)
        assert pair.ends[0].confirmed
    pair.ends[1].take(["h", pair.ends[0].received, 0.0])
    assert pair.ends[1].confirmed


def test_a_heartbeat_alone_says_what_has_arrived() -> None:
    pair = Pair()
    pair.ends[0].send(Registered(1))
    pair.deliver(0, 1)
    pair.ends[0].take(["e", pair.ends[1].received, 0.0, 0.0])
    assert pair.ends[0].confirmed


def test_a_gap_is_refused() -> None:
    session = Session(lambda message: None)
    session.take(["m", 1, 0, ["Go"]])
    with pytest.raises(WireError, match="message 3 after 1"):
        session.take(["m", 3, 0, ["Go"]])


def test_a_repeated_message_is_not_delivered_again() -> None:
    got: list[Message] = []
    session = Session(got.append)
    for _ in range(3):
        session.take(["m", 1, 0, ["Registered", 7]])
    assert got == [Registered(7)]


def test_a_measure_of_the_leaders_clock_does_not_grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first heartbeat was uncommonly fast; since then the clocks drift apart."""
    nothing: Any = SimpleNamespace(leader_said=None)
    follower = Follower(nothing, nothing, nothing, 0, "", Deadlines(), nothing)
    now = [100.0]
    monkeypatch.setattr(follower.session, "take", lambda payload: payload)
    monkeypatch.setattr("muster.run.channel.follower.time.monotonic", lambda: now[0])

    def heartbeat(round_trip_s: float, ahead_s: float) -> None:
        sent_s, now[0] = now[0], now[0] + round_trip_s
        follower._payload(nothing, ["e", 0, sent_s, sent_s + round_trip_s / 2 + ahead_s])
        now[0] += 5

    heartbeat(0.0002, 7.0)
    assert follower.clock_offset_s == pytest.approx(7.0)
    for beat in range(60):
        heartbeat(0.001, 7.001 + beat / 60_000)
    assert follower.clock_offset_s == pytest.approx(7.002, abs=1e-4)
    assert follower.round_trip_s == pytest.approx(0.001)
