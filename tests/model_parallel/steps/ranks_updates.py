"""Checks of gradients and optimizers of a model that is cut, each run by all ranks of one job:
`ranks_updates.py`."""

from __future__ import annotations

import torch

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


def begin(**parameters: object) -> None:
    begin_with(**{"microbatches": MICROBATCHES, "ddp_dist_backend": "auto", **parameters})
    torch.manual_seed(5)


def a_batch_that_is_refused_leaves_gradients_as_they_are() -> None:
    model, whole = wrapped(Tied(WIDTH, chain()))
    for _ in range(2):
        x, y = batch()
        trained(model, x, y)
        train_whole(whole, x, y)
    with refused("microbatches do not divide", StepError):
        trained(model, *batch(10))
    agree(model, whole)


CHECKS = (a_batch_that_is_refused_leaves_gradients_as_they_are,)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
