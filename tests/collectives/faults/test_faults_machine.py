"""Hosts that are slow, or have too little: who holds the others up is said, and nobody else is."""

from __future__ import annotations

import pytest

from tests.collectives.faults.fault_worker import LONG_S
from tests.collectives.faults.test_faults import names
from tests.collectives.support.jobs import clean, job

STRAGGLER_S = 2.0  # every 16th call may look: so at the 32nd, some 3 s after the first


@pytest.mark.promise("F36")
@pytest.mark.parametrize(
    ("nodes", "victim", "speakers"),
    [
        pytest.param("aaa", 0, [1], id="first of its node"),
        pytest.param("aaa", 1, [0], id="second of its node"),
        pytest.param("aabb", 2, [3], id="one of several nodes"),
        pytest.param("aab", 2, [], id="alone in its node"),
    ],
)
def test_a_slow_rank_is_named_in_one_log_line_and_nobody_else(
    nodes: str, victim: int, speakers: list[int]
) -> None:
    """Between nodes too: a leader that waits for the other node's is not what its own waits for."""
    given = {"COLLECTIVES_STRAGGLER_S": f"{STRAGGLER_S:g}"}
    with job(
        "faults.fault_worker",
        len(nodes),
        "straggles",
        str(victim),
        environ=given,
        nodes=names(nodes),
    ) as started:
        ends = started.ends()
        said = clean(ends)
    assert any(any(each["waits"]) for each in said)
    lines = [line for end in ends for line in end.err.splitlines() if "straggler" in line]
    assert all(f"rank {victim}: steps take" in line for line in lines), lines
    assert [end.rank for end in ends if "straggler" in end.err] == speakers, lines


@pytest.mark.parametrize("victim", [0, 1], ids=["it is connected to", "it connects"])
def test_a_rank_without_a_descriptor_for_a_connection_says_so_and_blames_nobody_else(
    victim: int,
) -> None:
    with job("faults.descriptor_worker", 2, str(victim), "sum", nodes=names("ab")) as started:
        said = clean(started.ends())
    own, other = said[victim], said[1 - victim]
    assert (own["kind"], own["ranks"]) == ("ResourceError", [victim]), own
    assert f"rank {victim} has no descriptor left (Too many open files)" in own["text"], own
    assert "ulimit -n" in own["text"], own
    assert other["ranks"] == [victim], other
    assert max(each["took_s"] for each in said) < LONG_S / 2, said


@pytest.mark.parametrize("nodes", ["ab", "aa"])
def test_a_group_that_a_rank_has_no_descriptors_for_is_refused_by_all_before_it_is_made(
    nodes: str,
) -> None:
    with job("faults.descriptor_worker", 2, "1", "group", nodes=names(nodes)) as started:
        said = clean(started.ends())
    for each in said:
        assert (each["kind"], each["ranks"]) == ("ResourceError", [1]), each
        assert "rank 1" in each["text"] and "descriptors left" in each["text"], each
        assert "ulimit -n" in each["text"], each
    assert max(each["took_s"] for each in said) < LONG_S / 2, said
