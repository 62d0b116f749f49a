"""What a host tells of its ranks: always within its bound, and the ranks that stand out first."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contract.request.distribution import MAX_PROCESSES
from muster.run.channel import messages as m
from muster.run.channel import wire
from muster.run.channel.digest import (
    DIGEST_BYTES,
    HostDigest,
    RankFigures,
    digest_from_json,
    fitting,
)
from muster.run.child.failures import MOST_REPORTED
from muster.run.child.rank import FAILURE_TEXT_BYTES, SUMMARY_BYTES
from muster.types.outcome import RankFailure

numbers = st.none() | st.floats(0, 1e12)
counts = st.none() | st.integers(0, 1 << 50)
figures = st.builds(RankFigures, st.integers(0, 1 << 20), numbers, counts, counts, numbers, numbers)
digests = st.lists(figures, max_size=40, unique_by=lambda one: one.rank).map(
    lambda ranks: HostDigest(tuple(ranks))
)
FULL = HostDigest(
    tuple(
        RankFigures(1_000_000 + i, 1e6 / 3 + i, (1 << 40) + i, 10**9 + i, 1e3 / 3, 1e6 / 7 - i)
        for i in range(MAX_PROCESSES)
    )
)


def size(digest: HostDigest) -> int:
    return len(json.dumps(digest, separators=(",", ":")))


@given(digests, st.integers(20, 4000))
def test_what_is_sent_fits_and_says_how_many_are_left_out(digest: HostDigest, limit: int) -> None:
    sent = fitting(digest, limit)
    assert size(sent) <= limit
    assert sent.left_out == len(digest.ranks) - len(sent.ranks)
    assert digest_from_json(json.loads(json.dumps(sent))) == sent
    order = [one.rank for one in digest.ranks]
    assert [one.rank for one in sent.ranks] == [
        rank for rank in order if rank in {one.rank for one in sent.ranks}
    ]


@pytest.mark.parametrize("value", [-1, True, 1 << 63, float("nan"), float("inf"), "7"])
def test_what_the_leader_would_not_take_is_not_sent(value: Any) -> None:
    """A message that it refuses would leave a host without an end."""
    sent = fitting(HostDigest((RankFigures(0, 1.5, value, value, value, value),)))
    assert sent == HostDigest((RankFigures(0, 1.5),))
    assert digest_from_json(json.loads(json.dumps(sent))) == sent


def test_all_ranks_of_a_usual_host_fit() -> None:
    some = HostDigest(FULL.ranks[:64])
    assert len(fitting(some).ranks) == 64
    assert fitting(some).left_out == 0


def test_ranks_that_stand_out_stay() -> None:
    odd = RankFigures(500, 1.0, 1 << 45, 3, 0.001, 0.0)
    digest = HostDigest((*FULL.ranks[:500], odd, *FULL.ranks[501:]))
    sent = fitting(digest)
    assert size(sent) <= DIGEST_BYTES
    assert len(sent.ranks) > 100
    assert odd in sent.ranks
    assert sent.left_out == MAX_PROCESSES - len(sent.ranks)


def test_without_room_no_rank_stays() -> None:
    assert fitting(FULL, 10) == HostDigest((), MAX_PROCESSES)


@pytest.mark.parametrize("failures", [0, MOST_REPORTED])
def test_the_end_of_the_largest_host_fits_a_frame_with_its_digest(failures: int) -> None:
    """Ends and failures come first."""
    text = m.shortened("\U0001f600" * FAILURE_TEXT_BYTES, FAILURE_TEXT_BYTES)
    summary = m.shortened("\U0001f600" * SUMMARY_BYTES, SUMMARY_BYTES)
    one = RankFailure(
        "a" * 63, 10**6, -6, 1e6 / 3, summary, text, True, True, "/l" * 100, "n" * 99, summary
    )
    ends = tuple(
        m.RankEnd(rank.rank, -signal.SIGKILL, 123456.789, True, True) for rank in FULL.ranks
    )
    phases = dict.fromkeys(("join", "stage", "plan", "ready", "watch"), 12345.678901234)
    ended = m.HostEnded(ends, (one,) * failures, phases, FULL)
    sent = m.without_secrets(ended, str)
    assert isinstance(sent, m.HostEnded)
    wire.encode_numbered(10**9, 10**9, wire.encode(m.to_wire(sent)))
    assert sent.digest is not None
    assert sent.digest.left_out == MAX_PROCESSES - len(sent.digest.ranks)
    assert sent._replace(digest=None) == ended._replace(digest=None)
    assert bool(sent.digest.ranks) or failures
