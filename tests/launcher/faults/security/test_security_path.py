"""Frames that somebody on the path repeats, drops, swaps or brings from elsewhere (S03).

The host talks through a process in the middle. A frame that is not the next one of this very
session ends the connection; the host comes back, and every message arrives once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.launcher.support.peers.attacked_leader import LeaderUnderAttack, Member
from tests.launcher.support.peers.attackers import Attacker
from tests.launcher.support.peers.intercepting_proxy import InterceptingProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.promise("S03")
HOST = 3
MANY = 25  # frames of a recording, at least: the one to meddle with is among the first of them
Meddling = Callable[[int, bytes, Sequence[bytes], InterceptingProxy], list[bytes]]


@pytest.fixture
def earlier(tmp_path: Path) -> list[bytes]:
    """All that a host said in an earlier run of the same job, with the same secret."""
    made = LeaderUnderAttack(tmp_path)
    try:
        return recording(made)
    finally:
        made.close()


def recording(target: LeaderUnderAttack) -> list[bytes]:
    """The frames of a host that joined, said things and left."""
    middle = InterceptingProxy(target)
    host = target.join(HOST, **middle.settings)
    for _ in range(MANY):
        host.order("register", 4242)
    target.leader.wait_for("peer_said", HOST, ["Registered", 4242], count=MANY)
    host.end()
    target.leader.wait_for("peer_freed", HOST)
    middle.close()
    assert len(middle.recorded) > MANY
    return list(middle.recorded)


MEDDLING: dict[str, Meddling] = {  # `turn`: 0 for the frame to meddle with, 1 for the one after it
    "repeated": lambda turn, frame, earlier, middle: [frame] if turn else [frame, frame],
    "dropped": lambda turn, frame, earlier, middle: [frame] if turn else [],
    "swapped": lambda turn, frame, earlier, middle: [frame, middle.recorded[-2]] if turn else [],
    "of an earlier run": lambda turn, frame, earlier, middle: [
        frame if turn else earlier[len(middle.recorded) - 1]
    ],
    # the leader's own frame of the same number, sent back; it greeted with one frame more
    "of the leader": lambda turn, frame, earlier, middle: [
        frame if turn else middle.answers[len(middle.recorded)]
    ],
}


@pytest.mark.parametrize("meddling", MEDDLING.values(), ids=MEDDLING)
def test_a_frame_out_of_its_place_ends_the_connection_and_loses_nothing(
    attacked: LeaderUnderAttack, earlier: list[bytes], meddling: Meddling
) -> None:
    middle, leader = InterceptingProxy(attacked), attacked.leader
    host = attacked.join(HOST, **middle.settings)
    for _ in range(MANY):
        leader.order("say", "x")
    wait_until(lambda: len(middle.answers) > MANY, 20)
    turns = iter((0, 1))
    landed: list[int] = []

    def edit(number: int, frame: bytes) -> list[bytes]:
        turn = next(turns, None)
        if turn is None or middle.connections > 1:
            return [frame]
        landed.append(number)
        return meddling(turn, frame, earlier, middle)

    middle.edit = edit
    for number in range(5):
        host.order("register", number)
    leader.wait_for("peer_suspect", HOST)
    assert landed and 0 < landed[0] < MANY
    leader.wait_for("peer_recovered", HOST)
    host.order("register", 99)
    leader.wait_for("peer_said", HOST, ["Registered", 99])
    said = [event[2] for event in leader.of("peer_said") if event[1] == HOST]
    assert said == [["Registered", number] for number in (0, 1, 2, 3, 4, 99)]
    assert not leader.of("peer_lost")
    middle.close()


def test_a_recording_played_again_is_dropped(attacked: LeaderUnderAttack) -> None:
    """The whole of what a true host ever sent, to the same leader, when its place is free."""
    _played_again(attacked, recording(attacked))


def test_a_recording_of_an_earlier_run_is_dropped(
    attacked: LeaderUnderAttack, earlier: list[bytes]
) -> None:
    _played_again(attacked, earlier)


def _played_again(target: LeaderUnderAttack, frames: list[bytes]) -> None:
    joined = len(target.leader.of("peer_joined"))
    assert len(frames) > MANY
    for played in (frames, frames[1:]):  # with its hello and without
        again = Attacker(target).challenge()
        again.send(b"".join(played))
        assert again.dropped()
    assert len(target.leader.of("peer_joined")) == joined
    said = [event for event in target.leader.of("peer_said") if event[2] == ["Registered", 4242]]
    assert len(said) in (0, MANY)  # when it was said


def test_a_host_on_a_clean_path_is_never_suspect(attacked: LeaderUnderAttack) -> None:
    """What the other tests see is the meddling, not the middle."""
    middle = InterceptingProxy(attacked)
    host: Member = attacked.join(HOST, **middle.settings)
    for number in range(5):
        host.order("register", number)
    attacked.leader.wait_for("peer_said", HOST, ["Registered", 4])
    wait_until(lambda: len(middle.recorded) > MANY, 20)
    assert not attacked.leader.of("peer_suspect")
    middle.close()
