"""The state of an optimizer divided among replicas, with one stage and with two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_parallel.support.ranks import results, run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(200)]
CHECKS = Path(__file__).with_name("ranks_sharded.py")
LIMIT_S = 150  # no promise


@pytest.mark.parametrize(
    ("count", "parameters"),
    [(2, {"ddp": True}), (4, {"ddp": True, "pipeline_parallel_degree": 2, "microbatches": 2})],
    ids=["replicas", "replicas of a pipeline"],
)
def test_a_state_that_is_divided(tmp_path: Path, count: int, parameters: dict[str, object]) -> None:
    """All checks of ranks_sharded.py, by name, in one job."""
    found = results(
        run_ranks(CHECKS, count, arguments=[tmp_path], parameters=parameters, limit_s=LIMIT_S)
    )
    failures = [
        f"{name} on rank {rank}:\n{words}"
        for rank, said in enumerate(found)
        for name, words in said.items()
        if words
    ]
    assert found[0] and not failures, "\n".join(failures)
