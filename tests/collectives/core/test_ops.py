"""All operations, types and sizes give what a 64-bit reference says, the same bits on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.collectives.core.ops_worker import CHUNK_BYTES
from tests.collectives.support.jobs import JOB_S, clean, job
from tests.support.effort import chance, effort

# small pieces, so that small data meets the edges of every algorithm
TUNED = {
    "COLLECTIVES_CHUNK_BYTES": str(CHUNK_BYTES),
    "COLLECTIVES_SLOT_BYTES": str(2 * CHUNK_BYTES),
    "COLLECTIVES_ONE_SHOT_BYTES": str(CHUNK_BYTES // 2),
    "COLLECTIVES_DIRECT_BYTES": "1024",
    "COLLECTIVES_LEADER_BYTES": "2048",
    "COLLECTIVES_SEGMENT_BYTES": str(CHUNK_BYTES),
}


def run(
    ranks: int, *arguments: str, nodes: Sequence[str] = (), worker: str = "core.ops_worker",
    limit_s: float = JOB_S, **variables: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """What the ranks say of a job in which every check was right."""
    given = {**TUNED, **variables}
    with job(worker, ranks, *arguments, environ=given, nodes=nodes) as started:
        return clean(started.ends(limit_s))


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(4, marks=pytest.mark.long), 5, 8])
def test_all_types_operations_and_sizes_are_right_and_alike_on_all_ranks(ranks: int) -> None:
    said = run(ranks, "matrix")
    assert len({each["same"] for each in said}) == 1, "ranks hold other bits"
    taken = said[0]["paths"]
    expected = ("alone",) if ranks == 1 else ("one_shot", "staged")
    assert all(taken[name] for name in expected), taken


def test_results_are_the_same_bits_from_run_to_run_and_on_every_instruction_set() -> None:
    first = run(3, "few")
    second = run(3, "few")
    plain = run(3, "few", COLLECTIVES_ISA="plain")
    assert [each["own"] for each in first] == [each["own"] for each in second]
    assert [each["own"] for each in first] == [each["own"] for each in plain]


@pytest.mark.parametrize("nodes", ["abab", "aabbb", "abc"])
def test_between_nodes_all_types_and_operations_are_right_and_alike(nodes: str) -> None:
    said = run(len(nodes), "few", nodes=list(nodes))
    assert len({each["same"] for each in said}) == 1, "ranks hold other bits"
    taken = said[0]["paths"]
    assert taken["leaders"] and taken["rails"], taken


def test_registered_memory_takes_the_direct_path_and_gives_the_same_bits() -> None:
    said = run(3, "direct")
    assert all(each["paths"]["direct"] >= 3 for each in said)


@pytest.mark.parametrize(("ranks", "isa"), [(2, ""), (2, "avx2"), (3, ""), (5, "")])
def test_results_larger_than_the_cache_are_right_at_odd_places(ranks: int, isa: str) -> None:
    with job("core.ops_worker", ranks, "large", environ={"COLLECTIVES_ISA": isa}) as started:
        said = clean(started.ends())
    assert said[0]["paths"]["staged"], said[0]["paths"]


@pytest.mark.parametrize("ranks", [16, pytest.param(32, marks=pytest.mark.long)])
def test_all_verbs_of_many_ranks_a_node_are_right_in_the_short_epochs_they_have(ranks: int) -> None:
    with job("core.ops_worker", ranks, "crowded") as started:
        said = clean(started.ends())
    assert len({each["same"] for each in said}) == 1, "ranks hold other bits"
    assert said[0]["paths"]["staged"], said[0]["paths"]


@pytest.mark.effort
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", ["", "ababb", "aabbc"])
def test_random_calls_messages_and_registered_memory_of_overlapping_groups_are_right(
    nodes: str,
) -> None:
    seed, steps = chance().randrange(1, 1 << 30), 300 * min(effort(), 40)
    given = (str(steps), str(seed))
    said = run(5, *given, nodes=list(nodes), worker="core.fuzz_worker", limit_s=500)
    assert sum(each["calls"] for each in said) > steps
    assert all(each["messages"] for each in said), said
    if not nodes:
        assert sum(each["direct"] for each in said) > steps / 10, said


@pytest.mark.effort
@pytest.mark.timeout(1800)
def test_very_many_small_calls_never_mix_their_rounds() -> None:
    calls = 1_000_000 if effort() > 1 else 20_000
    with job("core.ops_worker", 2, "small", str(calls), environ=TUNED) as started:
        said = clean(started.ends(1700))
    assert [each["calls"] for each in said] == [calls, calls]
    assert said[0]["paths"]["one_shot"] >= calls


def test_many_small_calls_of_more_ranks_than_processors_never_mix_their_rounds() -> None:
    said = run(4, "small", "3000")
    assert [each["calls"] for each in said] == [3000] * 4
