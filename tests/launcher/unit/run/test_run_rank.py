"""A rank's failure as it is told: masked before it is cut, and small enough for a frame."""

from __future__ import annotations

import signal
import socket

import pytest

from muster.contract.request.distribution import MAX_PROCESSES
from muster.plan.launchplan import RankSlot
from muster.run.base.evidence import TAIL_BYTES, Watcher
from muster.run.base.memory import KillWatch, Memory
from muster.run.channel import messages as m
from muster.run.channel import wire
from muster.run.child.rank import FAILURE_TEXT_BYTES, SUMMARY_BYTES, Rank
from muster.run.child.ranks import FAILURES_REPORTED
from muster.run.child.shim_handle import ShimHandle
from muster.run.job.context import DETAIL_BYTES, host_error_of
from muster.types.errors import InstallError
from muster.types.masking import Masker
from muster.types.outcome import RankFailure

SECRET = "canary-0123456789abcdef"
MASK = Masker([SECRET]).mask


def failed(written: bytes, status: int = 1) -> RankFailure:
    """The failure of a rank that has written this and ended with the status."""
    rank = Rank(RankSlot(0, 0, 0))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rank.handle = ShimHandle("rank", ours, 1, {}, lambda _one, _on: None)
        rank.handle.status = status
        rank.began_s, rank.ended_s = 1.0, 2.0
        for begin in range(0, len(written), 1 << 14):
            rank.watcher.feed(written[begin : begin + (1 << 14)], 1.5, True)
        return rank.failure("algo-1", "python", 0.0, "", KillWatch(Memory(), list), MASK)


@pytest.mark.promise("S08")
@pytest.mark.parametrize("shift", range(0, len(SECRET), 3))
def test_a_secret_where_a_text_is_cut_leaves_no_part_of_itself(shift: int) -> None:
    """By its value it is known only whole."""
    line = f"ValueError: {'x' * shift}{f'{SECRET} ' * 400}".encode()
    failure = failed(b"Traceback (most recent call last):\n" + line + b"\n")
    for text in (failure.tail, failure.summary):
        assert "canary" not in text
        assert "0123456789" not in text
    told = host_error_of(
        InstallError("y" * shift + SECRET * 300, "", "z" * shift + SECRET * 600), MASK
    )
    for text in (told.message, told.detail):
        assert "canary" not in text
        assert "cdef" not in text


def test_the_end_of_a_rank_that_was_killed_is_known_before_it_has_told_it() -> None:
    rank = Rank(RankSlot(3, 0, 3))
    rank.began_s, rank.signalled_s, rank.killed = 1.0, 5.0, True
    assert rank.end(7.5) == m.RankEnd(3, -signal.SIGKILL, 6.5, stopped=True, forced=True)


def test_what_a_watcher_keeps_begins_with_a_whole_line() -> None:
    watcher = Watcher()
    for number in range(9000):
        watcher.feed(f"{SECRET} {number}\n".encode(), 0.0, True)
    assert len(watcher.tail) > TAIL_BYTES - 100
    assert watcher.tail.startswith(SECRET.encode())
    assert watcher.tail.endswith(b" 8999\n")


def test_what_the_most_ranks_of_a_host_tell_at_their_end_fits_a_frame() -> None:
    ends = tuple(
        m.RankEnd(rank, -signal.SIGKILL, 123456.789, True, True)
        for rank in range(1_000_000, 1_000_000 + MAX_PROCESSES)
    )
    text = m.shortened("\U0001f600" * FAILURE_TEXT_BYTES, FAILURE_TEXT_BYTES)
    summary = m.shortened("\U0001f600" * SUMMARY_BYTES, SUMMARY_BYTES)
    one = RankFailure(
        "a" * 63, 10**6, -6, 1e6 / 3, summary, text, True, True, "/l" * 100, "n" * 99, summary
    )
    phases = dict.fromkeys(("join", "stage", "plan", "ready", "watch"), 12345.678901234)
    ended = m.HostEnded(ends, (one,) * FAILURES_REPORTED, phases)
    payload = wire.encode(m.to_wire(ended))
    wire.encode_numbered(10**9, 10**9, payload)
    assert DETAIL_BYTES < wire.FRAME_LIMIT_BYTES
