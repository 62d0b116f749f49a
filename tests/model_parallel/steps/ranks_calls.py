"""Checks of calls that differ within a step or between steps, each run by all ranks of one job."""

from __future__ import annotations

import copy
from functools import reduce

import torch
from torch import nn

import muster_modelparallel as smp
from tests.model_parallel.steps.ranks_steps import (
    agree,
    batch,
    begin,
    chain,
    evaluate,
    refused,
    train,
    train_whole,
    wrapped,
)
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give


def without(model, x):
    with torch.no_grad():
        return model(x)


def distance(model, x, y, is_before: bool) -> torch.Tensor:
    """Of what is trained from what is not, which comes before it or after it."""
    if is_before:
        fixed = without(model, y)
        out = model(x)
    else:
        out = model(x)
        fixed = without(model, y)
    return (out - fixed).square().mean()


@smp.step
def approach(model, x, y, is_before):
    loss = distance(model, x, y, is_before)
    model.backward(loss)
    return loss


def a_call_without_gradients_may_stand_beside_one_that_trains() -> None:
    count = smp.state.cfg.microbatches
    for is_before in (False, True):
        for is_first in (True, False):  # step of the model
            model, whole = wrapped(chain())
            if not is_first:
                given = batch()
                train(model, *given)
                train_whole(whole, *given, count=count)
            for _ in range(3):
                x, y = batch()
                loss = approach(model, x, y, is_before).reduce_mean()
                wanted = []
                for a, b in zip(x.chunk(count), y.chunk(count), strict=True):
                    wanted.append(distance(whole, a, b, is_before))
                    (wanted[-1] / count).backward()
                torch.testing.assert_close(loss, torch.stack(wanted).mean())
                agree(model, whole)
            begin()


def backward_without_a_call_that_has_gradients_is_refused() -> None:
    model, _ = wrapped(chain())
    train(model, *batch())
    free = torch.ones(1, requires_grad=True)

    @smp.step
    def step(model, x):
        model.backward((without(model, x) * free).sum())

    with refused("no call of the model in that microbatch had gradients"):
        step(model, batch()[0])


def a_call_without_gradients_where_steps_before_trained_is_refused() -> None:
    model, _ = wrapped(chain())

    @smp.step
    def step(model, x, y, is_late):
        if is_late:
            without(model, x)
        loss = (model(x) - y).square().mean()
        model.backward(loss)

    step(model, *batch(), False)
    with refused("called the model without gradients where steps before trained"):
        step(model, *batch(), True)


class Listed(nn.Module):
    """Calls its layers itself to train, and a list of them to evaluate."""

    def __init__(self, is_same: bool) -> None:
        super().__init__()
        self.layers = chain()
        self.also = self.layers if is_same else nn.Sequential(*self.layers)
        self.head = chain()[0]

    def forward(self, x):
        if self.training:
            return self.head(reduce(lambda x, layer: layer(x), self.layers, x))
        return self.head(self.also(x))


def evaluation_may_call_a_list_of_the_layers_that_training_calls() -> None:
    for is_same in (True, False):
        begin()
        model, whole = wrapped(Listed(is_same))
        train(model, *batch())
        x, _ = batch()
        with torch.no_grad():
            found = evaluate(model.eval(), x).concat()
            torch.testing.assert_close(found, whole.eval()(x))


def layers_may_be_unfrozen_and_frozen_between_steps() -> None:
    net = chain()
    net[:4].requires_grad_(False)
    net[5].requires_grad_(False)
    whole = copy.deepcopy(net)
    mine = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    model, optimizer = smp.DistributedModel(net), smp.DistributedOptimizer(mine)
    wanted = torch.optim.SGD(whole.parameters(), 0.1, momentum=0.5)
    for number in range(9):
        for one in (net, whole):
            if number in (2, 6):
                one.requires_grad_(True)
            if number == 4:
                one[:5].requires_grad_(False)
            if number == 8:
                one[3:].requires_grad_(False)
        optimizer.zero_grad()
        wanted.zero_grad()
        x, y = batch()
        train(model, x, y)
        train_whole(whole, x, y, smp.state.cfg.microbatches)
        agree(model, whole)
        optimizer.step()
        wanted.step()
    torch.testing.assert_close(model.state_dict(), whole.state_dict(), rtol=1e-5, atol=1e-6)


CHECKS = (
    evaluation_may_call_a_list_of_the_layers_that_training_calls,
    a_call_without_gradients_may_stand_beside_one_that_trains,
    backward_without_a_call_that_has_gradients_is_refused,
    layers_may_be_unfrozen_and_frozen_between_steps,
    a_call_without_gradients_where_steps_before_trained_is_refused,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
