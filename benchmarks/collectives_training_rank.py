"""One rank that trains: `collectives_training_rank ddp|fsdp ROUNDS OUTPUT`; rank 0 writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.collectives_training import ALONE, GLOO, OURS
from muster_collectives.bench.cases import Case, Result, encode_result
from muster_collectives.bench.group import Group, place
from muster_collectives.bench.measure import measure

BATCH = 16
SHAPES = ((256, 3), (1024, 3), (2048, 3))  # width and number of layers: 0.8, 12, 48 MiB
BUDGET_S = 3.0
CLOSE = 1e-5


def main(what: str, rounds: int, output: str) -> None:
    group = Group(*place())
    for result in (ddp if what == "ddp" else fsdp)(group, rounds):
        if group.rank == 0:
            with open(output, "a", encoding="utf-8") as file:
                file.write(json.dumps(encode_result(result)) + "\n")
    group.close()


def ddp(group: Group, rounds: int) -> list[Result]:
    from torch.nn.parallel import DistributedDataParallel as Parallel

    results = []
    for width, layers in SHAPES:
        models = {
            OURS: Parallel(_model(group, width, layers)),
            GLOO: Parallel(_model(group, width, layers), process_group=group.gloo),
            ALONE: _model(group, width, layers),
        }
        steps = {name: _step(group, model, width) for name, model in models.items()}
        for name in (OURS, GLOO):
            steps[name]()
        _same_gradients(group, models[OURS], models[GLOO])
        size = sum(p.numel() * 4 for p in models[ALONE].parameters())
        series = measure(group, steps, rounds, BUDGET_S)
        results.append(Result(Case("all_reduce", "float32", size, ()), group.size, series, {}))
    return results


def fsdp(group: Group, rounds: int) -> list[Result]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    steps = {}
    for name, where in ((OURS, group.dist.group.WORLD), (GLOO, group.gloo)):
        model = _model(group, 1024, 2)
        mesh = DeviceMesh.from_group(where, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        steps[name] = _step(group, model, 1024)
    series = measure(group, steps, rounds, BUDGET_S)
    return [Result(Case("all_gather", "float32", 2 << 22, ()), group.size, series, {})]


def _model(group: Group, width: int, layers: int) -> Any:
    """The same weights on every rank and in every copy."""
    group.torch.manual_seed(0)
    parts = [group.torch.nn.Linear(width, width) for _ in range(layers)]
    return group.torch.nn.Sequential(*parts)


def _step(group: Group, model: Any, width: int) -> Callable[[], object]:
    chance = group.torch.Generator().manual_seed(group.rank)
    batch = group.torch.randn(BATCH, width, generator=chance)
    optimizer = group.torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def _same_gradients(group: Group, one: Any, other: Any) -> None:
    """Raises ValueError: two means of the same gradients that differ measure nothing."""
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        if not group.torch.allclose(mine.grad, theirs.grad, atol=CLOSE, rtol=CLOSE):
            raise ValueError("the gradients of the two groups differ")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
