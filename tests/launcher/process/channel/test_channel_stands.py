"""A host that stands still for a while loses nobody who speaks meanwhile, or stood beside it."""

from __future__ import annotations

import time

import pytest

from muster.run.channel.messages import Go, Ready
from tests.launcher.support.peers.channel import FAST, SLOW, Channel, channel

__all__ = ["channel"]
LIMIT_S = FAST.lost_after_s
PATIENT = FAST._replace(lost_after_s=30.0)


def kinds(channel: Channel) -> set[object]:
    return {event[0] for event in channel.story.told}


@pytest.mark.promise("F28")
def test_a_leader_that_stood_still_loses_nobody_whose_heartbeats_lie_unread(
    channel: Channel,
) -> None:
    """Both ends on one loop, so that a busy machine delays the one with the other."""
    leader = channel.lead(FAST)
    follower, _ = channel.joined(1, PATIENT)
    leader.strict = True

    def stand() -> None:
        for _ in range(int(2 * LIMIT_S / FAST.heartbeat_s)):
            follower.confirm()  # timers come next, before what lies unread
            time.sleep(FAST.heartbeat_s)

    channel.loop.post(stand)
    channel.run_for(4 * LIMIT_S)
    assert kinds(channel) == {"joined"}
    follower.send(Ready("d"))
    channel.until(lambda: channel.story.said_by(1) == [Ready("d")])


def test_a_word_that_lies_unread_after_a_long_silence_saves_the_host(channel: Channel) -> None:
    """The stand itself is short: it only begins when the silence has nearly reached its limit."""
    leader = channel.lead(FAST)
    follower, _ = channel.joined(1, PATIENT)
    leader.strict = True

    def late() -> None:
        leader.session(1).heard_s = time.monotonic() - 0.9 * LIMIT_S
        follower.send(Ready("d"))
        time.sleep(0.3 * LIMIT_S)

    channel.loop.post(late)
    channel.run_for(LIMIT_S)
    assert "lost" not in kinds(channel)
    assert channel.story.said_by(1) == [Ready("d")]


def test_a_word_that_lies_unread_after_a_long_silence_saves_the_leader(channel: Channel) -> None:
    leader = channel.lead(SLOW)
    follower, side = channel.joined(1, FAST)

    def late() -> None:
        follower.session.heard_s = time.monotonic() - 0.9 * LIMIT_S
        leader.send(1, Go())
        time.sleep(0.3 * LIMIT_S)

    channel.loop.post(late)
    channel.run_for(LIMIT_S)
    assert not side.lost
    assert side.got == [Go()]


def test_hosts_that_stood_still_together_find_each_other_again(channel: Channel) -> None:
    """A machine that was paused with all its hosts: nobody has spoken, and nothing lies unread."""
    slow_beat = FAST._replace(heartbeat_s=0.2, lost_after_s=0.8)
    leader = channel.lead(slow_beat)
    follower, side = channel.joined(1, slow_beat)
    leader.strict = True
    frames = follower.session.frames
    assert frames is not None
    speak = frames.send

    def paused() -> None:
        frames.send = lambda message: None  # type: ignore[method-assign]
        time.sleep(2 * slow_beat.lost_after_s)
        # the leader looks a few times before the first word of the other one comes
        channel.loop.after(0.1, lambda: setattr(frames, "send", speak))

    channel.loop.post(paused)
    channel.run_for(4 * slow_beat.lost_after_s)
    assert kinds(channel) == {"joined"}
    assert not side.lost
    assert side.silences == 0
