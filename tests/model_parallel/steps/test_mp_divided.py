"""What replicas and stages divide among them: the state of an optimizer, parameters and when these
get their memory; and the master weights of half precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_parallel.support.checks import failures
from tests.model_parallel.support.ranks import results, run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parent
LIMIT_S = 240  # no promise: ranks that import torch beside other work take their time


REPLICAS: dict[str, object] = {"ddp": True}
# what a stage has is compared with what it had in another session, so it is not cut by measurement
STAGES: dict[str, object] = {"pipeline_parallel_degree": 2, "skip_tracing": True}
CUT = {**REPLICAS, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 100}
BOTH = {**REPLICAS, **STAGES, "microbatches": 2, "optimize": "speed"}


@pytest.mark.parametrize(
    ("script", "count", "parameters"),
    [
        pytest.param("ranks_sharded", 2, REPLICAS, id="state divided among replicas"),
        pytest.param("ranks_sharded", 4, BOTH, id="state divided among replicas of a pipeline"),
        pytest.param("ranks_half", 2, STAGES, id="half precision in stages"),
        pytest.param(
            "ranks_half", 4, {**BOTH, "shard_optimizer_state": True},
            id="half precision, state divided among replicas of a pipeline",
        ),
        pytest.param("ranks_cut", 2, REPLICAS, id="parameters cut over replicas"),
        pytest.param("ranks_cut", 4, REPLICAS, id="parameters cut over half of the replicas"),
        pytest.param("ranks_cut", 4, BOTH, id="parameters cut over replicas of a pipeline"),
        pytest.param("ranks_delayed", 2, CUT, id="memory that comes when parameters are cut"),
        pytest.param(
            "ranks_delayed", 4,
            {**REPLICAS, **STAGES, "microbatches": 2, "bf16": True, "shard_optimizer_state": True},
            id="memory that comes when stages are known",
        ),
        pytest.param(
            "ranks_delayed", 2, STAGES, marks=pytest.mark.long,
            id="memory that comes when stages are known, one replica",
        ),
        pytest.param(
            "ranks_delayed", 4, {**CUT, **STAGES, "microbatches": 2}, marks=pytest.mark.long,
            id="memory that comes when stages are known, whose parameters are cut",
        ),
        pytest.param(
            "ranks_cut", 4, {**BOTH, "pipeline": "Interleaved1F1B"}, marks=pytest.mark.long,
            id="parameters cut over replicas of a pipeline whose stages come in turns",
        ),
    ],
)  # fmt: skip
def test_what_replicas_divide(
    tmp_path: Path, script: str, count: int, parameters: dict[str, object]
) -> None:
    """All checks of the script, by name, in one job."""
    file = FOLDER / f"{script}.py"
    found = results(
        run_ranks(file, count, arguments=[tmp_path], parameters=parameters, limit_s=LIMIT_S)
    )
    assert not failures(found), failures(found)
