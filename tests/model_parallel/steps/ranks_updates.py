"""Checks of gradients and optimizers of a model that is cut, each run by all ranks of one job:
`ranks_updates.py`."""

from __future__ import annotations

import torch
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.errors import StepError
from tests.model_parallel.steps.ranks_steps import (
    MICROBATCHES,
    WIDTH,
    agree,
    batch,
    begin_with,
    chain,
    refused,
    train_whole,
    trained,
    wrapped,
)
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give
from tests.model_parallel.support.tied import Tied

LR = 0.1


def begin(**parameters: object) -> None:
    begin_with(**{"microbatches": MICROBATCHES, "ddp_dist_backend": "auto", **parameters})
    torch.manual_seed(5)


def sgd(model):
    return smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), LR))


def gradients_may_be_dropped_in_a_step_function_also_of_tied_parameters() -> None:
    for set_to_none in (True, False):
        begin(microbatches=1)
        model, whole = wrapped(Tied(WIDTH, chain()))
        optimizer = sgd(model)

        @smp.step
        def step(model, x, y):
            optimizer.zero_grad(set_to_none)  # noqa: B023
            model.backward(functional.mse_loss(model(x), y))

        for _ in range(3):
            x, y = batch()
            step(model, x, y)
            whole.zero_grad(set_to_none)
            train_whole(whole, x, y, 1)
        agree(model, whole)


def a_batch_that_is_refused_leaves_gradients_as_they_are() -> None:
    model, whole = wrapped(Tied(WIDTH, chain()))
    for _ in range(2):
        x, y = batch()
        trained(model, x, y)
        train_whole(whole, x, y)
    with refused("microbatches do not divide", StepError):
        trained(model, *batch(10))
    agree(model, whole)


CHECKS = (
    gradients_may_be_dropped_in_a_step_function_also_of_tied_parameters,
    a_batch_that_is_refused_leaves_gradients_as_they_are,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
