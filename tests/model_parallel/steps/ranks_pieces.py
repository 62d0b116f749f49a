"""Checkpoints in pieces, from one layout of ranks to another: `ranks_pieces.py FOLDER save TAG`
leaves one after some steps, `... resume TAG...` goes on from each and gives what it then had."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from tests.model_parallel.support.checks import over
from tests.model_parallel.support.ranks import give

WIDTH, ROWS, LAYERS = 8, 8, 5


def main() -> None:
    torch.set_num_threads(1)
    folder, what, *tags = sys.argv[1:]
    if what == "save":
        model, optimizer = begin()
        train(model, optimizer, 2)
        smp.save_checkpoint(folder, tags[0], True, model, optimizer, {"step": 2}, in_pieces=True)
        give(digest(model, optimizer))
        return
    found = {}
    for tag in tags:
        for is_before in (True, False):
            model, optimizer = begin()
            if not is_before:  # the partition is known, and the optimizer has a state
                train(model, optimizer, 1)
            assert smp.resume_from_checkpoint(folder, tag) == {"step": 2}
            assert next(model.module[1].modules()).marks == {"resumed": 7}
            if is_before:
                optimizer.zero_grad()  # so that the model is cut by now
                step(model, *batch(0))
            found[f"{tag} {is_before}"] = digest(model, optimizer)
        over()
    give(found)


def begin() -> tuple[Any, Any]:
    over()
    smp.init({"microbatches": 2})
    torch.manual_seed(5)
    ends = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
    ends[1].weight = ends[0].weight
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    blocks[0] = Counting(blocks[0])
    module = nn.Sequential(ends[0], *blocks, nn.BatchNorm1d(WIDTH), ends[1])
    model = smp.DistributedModel(module)
    return model, smp.DistributedOptimizer(torch.optim.AdamW(module.parameters(), lr=0.01))


class Counting(nn.Module):
    """Has a state that is no tensor."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.marks = module, {"resumed": 0}

    def forward(self, x):
        return self.module(x)

    def get_extra_state(self):
        return {"resumed": 7}

    def set_extra_state(self, state):
        self.marks = state


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 * number + smp.dp_rank())
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


@smp.step
def step(model, x, y):
    loss = functional.mse_loss(model(x), y)
    model.backward(loss)
    return loss


def train(model: Any, optimizer: Any, count: int) -> None:
    for number in range(count):
        optimizer.zero_grad()
        step(model, *batch(number))
        optimizer.step()


def digest(model: Any, optimizer: Any) -> dict[str, str]:
    """Of the bits of all parameters, and of all states of the optimizer."""
    whole = optimizer.state_dict()
    parameters = {name for name, _ in model.named_parameters()}
    states = {
        f"{number} {key}": value
        for number, values in whole["state"].items()
        for key, value in values.items()
    }
    every = {name: one for name, one in model.state_dict().items() if name in parameters}
    bits = {
        name: hashlib.sha256(one.contiguous().numpy().tobytes()).hexdigest()
        for name, one in {**every, **states}.items()
    }
    return {**bits, "groups": str(whole["param_groups"])}


if __name__ == "__main__":
    main()
