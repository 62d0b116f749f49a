"""Checks of gradients and optimizers of a model that is cut, each run by all ranks of one job:
`ranks_updates.py`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.errors import StepError
from muster_modelparallel.wrap.grad_scaler import GradScaler
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


def a_grad_scaler_that_knows_of_one_rank_is_refused_and_ours_skips_on_all() -> None:
    model, _ = wrapped(chain())
    optimizer = sgd(model)
    first = next(iter(model.parameters()))
    factor = [1.0]
    first.register_hook(lambda gradient: gradient * factor[0])
    for scaler in (torch.amp.GradScaler("cpu", init_scale=4.0), GradScaler(init_scale=4.0)):

        @smp.step
        def step(model, x, y):
            model.backward(scaler.scale(functional.mse_loss(model(x), y)))  # noqa: B023

        for factor[0] in (1.0, float("inf"), 1.0):
            before = [one.detach().clone() for one in model.local_parameters()]
            optimizer.zero_grad()
            step(model, *batch())
            if not isinstance(scaler, GradScaler):
                with refused("use smp.amp.GradScaler", StepError):
                    scaler.step(optimizer)
                break
            scaler.step(optimizer)
            scaler.update()
            is_same = all(map(torch.equal, before, model.local_parameters()))
            assert is_same is (factor[0] != 1.0), factor
    assert scaler.get_scale() == 2.0


def a_gradient_of_a_parameter_of_another_rank_is_refused_before_an_update() -> None:
    model, _ = wrapped(chain())
    optimizer = sgd(model)
    trained(model, *batch())
    sum(one.square().sum() for one in model.parameters()).backward()
    before = [one.detach().clone() for one in model.local_parameters()]
    with refused("the script used parameter ", StepError):
        optimizer.step()
    assert all(map(torch.equal, before, model.local_parameters()))


def a_closure_is_refused() -> None:
    model, _ = wrapped(chain())
    with refused("a closure and several partitions", StepError):
        sgd(model).step(lambda: trained(model, *batch()))


def a_parameter_outside_the_model_is_refused_unless_it_is_frozen() -> None:
    for degree in (1, smp.size()):
        begin(pipeline_parallel_degree=degree, ddp=True)
        model, _ = wrapped(chain())
        stranger = nn.Parameter(torch.ones(3))
        optimizer = smp.DistributedOptimizer(torch.optim.SGD([*model.parameters(), stranger], LR))
        trained(model, *batch())
        before = [one.detach().clone() for one in model.local_parameters()]
        with refused("of shape (3,), which is not in the wrapped model", StepError):
            optimizer.step()
        assert all(map(torch.equal, before, model.local_parameters()))
        stranger.requires_grad_(False)
        optimizer.step()
        assert not any(map(torch.equal, before, model.local_parameters()))


CHECKS = (
    gradients_may_be_dropped_in_a_step_function_also_of_tied_parameters,
    a_batch_that_is_refused_leaves_gradients_as_they_are,
    a_grad_scaler_that_knows_of_one_rank_is_refused_and_ours_skips_on_all,
    a_gradient_of_a_parameter_of_another_rank_is_refused_before_an_update,
    a_closure_is_refused,
    a_parameter_outside_the_model_is_refused_unless_it_is_frozen,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
