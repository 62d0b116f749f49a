"""Trains a model cut over the ranks and, on each rank, the same model whole; says how far apart
they are: `ranks_parity.py DTYPE STEPS MODEL ...`, parameters as the launcher sends them.

The whole one does what a step means: one microbatch after the other, their mean gradient, a step.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

import muster_modelparallel as smp
from muster_modelparallel.run import session as sessions
from tests.model_parallel.parity.models import CASES, Case
from tests.model_parallel.support.checks import over
from tests.model_parallel.support.ranks import give


def main(dtype: str, steps: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, dtype))
    found = {}
    for name in names:
        smp.init()
        found[name] = compared(CASES[name], steps)
        over()
    give(found)


def compared(case: Case, steps: int) -> dict[str, Any]:
    """How far losses (absolute) and last gradients (relative) are
    from the whole model's, and how many gradients this rank compared."""
    torch.manual_seed(3)
    whole, given = case.make(), case.make()
    given.load_state_dict(whole.state_dict())
    model = smp.DistributedModel(given)
    optimizer = smp.DistributedOptimizer(sgd(given))
    whole_optimizer = sgd(whole)
    count = sessions.current().config.microbatches

    @smp.step
    def train(model: Any, batch: Any) -> Any:
        output = model(**arguments(batch, case))
        loss = case.loss(output, batch)
        model.backward(loss)
        return loss

    losses = 0.0
    for _ in range(steps):
        batch = case.batch()  # seeded alike on all ranks
        optimizer.zero_grad()
        given_loss = train(model, fed(batch)).reduce_mean()
        whole_optimizer.zero_grad()
        wanted = []
        for piece in cut(batch, count):
            loss = case.loss(whole(**arguments(piece, case)), piece)
            (loss / count).backward()
            wanted.append(loss.detach())
        losses = max(losses, abs(float(given_loss - torch.stack(wanted).mean())))
        grads = gradients(model, whole)
        optimizer.step()
        whole_optimizer.step()
    stages = {name for name, _ in model.local_named_parameters()}
    return {"losses": losses, "gradients": grads, "compared": len(stages)}


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)


def fed(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What scripts feed: the first rank of a pipeline has the data, others only its length."""
    if smp.pp_rank() == 0:
        return batch
    return {name: torch.zeros(len(value), 0) for name, value in batch.items()}


def arguments(batch: Any, case: Case) -> dict[str, torch.Tensor]:
    return {name: batch[name] for name in batch if name != case.outside}


def cut(batch: dict[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    pieces = {name: value.chunk(count) for name, value in batch.items()}
    return [{name: pieces[name][at] for name in batch} for at in range(count)]


def gradients(model: Any, whole: torch.nn.Module) -> float:
    """The largest difference, relative to the largest gradient of the same parameter; where that is
    nothing beside others (the bias of keys has none but for rounding), to a thousandth of those."""
    wanted = {name: one.grad for name, one in whole.named_parameters()}
    least = 1e-3 * max(float(grad.abs().max()) for grad in wanted.values() if grad is not None)
    worst = 0.0
    for name, parameter in model.local_named_parameters():
        other = wanted[name]
        assert (parameter.grad is None) == (other is None), name
        if other is not None:
            apart = (parameter.grad - other).abs().max() / other.abs().max().clamp_min(least)
            worst = max(worst, float(apart))
    return worst


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
