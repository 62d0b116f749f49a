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


def parts_by_degree() -> dict[str, list[float]]:
    """For each hybrid_shard_degree, what part of a weight this rank holds: its size and place as
    shares of the whole; and whether a step is that of one process with all batches."""
    import torch
    from torch.distributed.tensor import DTensor

    import muster_modelparallel as smp
    from tests.model_parallel.support.checks import over

    @smp.step
    def train(model: torch.nn.Module, x: torch.Tensor) -> None:
        model.backward((model(x) ** 2).mean())

    found = {}
    for degree in (0, 2, 4):
        over()
        smp.init({"hybrid_shard_degree": degree})
        net = torch.nn.Linear(1000, 1000, bias=False)  # as few elements as are cut by default
        with torch.no_grad():
            torch.arange(1e6, out=net.weight.data.view(-1))
            net.weight /= 1e6
        whole = torch.nn.Linear(1000, 1000, bias=False)
        whole.load_state_dict(net.state_dict())
        model = smp.DistributedModel(net)
        (held,) = model.local_parameters()
        here = held.to_local() if isinstance(held, DTensor) else held
        share, place = here.nbytes / 4e6, float(here.detach().view(-1)[0])
        torch.manual_seed(3)
        batches = torch.randn(smp.dp_size(), 2, 1000)
        train(model, batches[smp.dp_rank()])
        (whole(batches.flatten(0, 1)) ** 2).mean().backward()
        grad = held.grad.to_local() if isinstance(held, DTensor) else held.grad
        first = round(place * 1000)
        wanted = whole.weight.grad[first : first + len(grad)]
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-6)
        found[str(degree)] = [share, place]
    return found


def test_hybrid_shard_degree_is_over_how_many_neighbours_parameters_are_cut() -> None:
    found = results(run_ranks(parts_by_degree, 4, limit_s=LIMIT_S))
    assert [rank["0"] for rank in found] == [[1, 0]] * 4
    assert [rank["2"] for rank in found] == [[0.5, 0], [0.5, 0.5]] * 2
    assert [rank["4"] for rank in found] == [[0.25, at / 4] for at in range(4)]


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
