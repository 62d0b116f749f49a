"""Checks of step functions on the script's own thread, each run by all ranks of one job."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from tests.model_parallel.steps.ranks_steps import (
    MICROBATCHES,
    WIDTH,
    Loss,
    agree,
    begin,
    begin_with,
    chain,
    train_loss,
    wrapped,
)
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give

seen: list[int] = []


@smp.step
def train(model, x):
    seen.append(threading.get_ident())
    loss = model(x)
    model.backward(loss)
    return loss


@smp.step
def evaluate(model, x):
    seen.append(threading.get_ident())
    return model(x)


def ran_here(step, *given):
    """The step's result, which must have come of this thread alone."""
    seen.clear()
    found = step(*given)
    assert seen == [threading.get_ident()] * MICROBATCHES
    return found


def few_microbatches_may_be_active() -> None:
    for active in (1, 2):
        begin_with(active_microbatches=active)
        torch.manual_seed(5)
        model, whole = wrapped(nn.Sequential(chain(), Loss()))
        for number in range(3):
            x = torch.randn(8, WIDTH)
            (ran_here if number else lambda f, *a: f(*a))(train, model, x)
            train_loss(whole, x)
        agree(model, whole)


def gradients_may_be_asked_for_in_the_function() -> None:
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    found = []

    @smp.step
    def step(model, x):
        loss = model(x)
        own = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(own.square().sum(), own)
        assert torch.equal(grad, 2 * x)
        (grad,) = torch.autograd.grad((3 * loss).sum(), loss, retain_graph=True)
        found.append(float(grad))
        model.backward(loss)
        return loss

    for _ in range(3):
        x = torch.randn(8, WIDTH)
        step(model, x)
        train_loss(whole, x)
    assert found == [3.0] * 3 * MICROBATCHES
    agree(model, whole)


def modes_around_a_step_hold_in_it_and_no_longer() -> None:
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    for _ in range(2):
        x = torch.randn(8, WIDTH)
        train(model, x)
        train_loss(whole, x)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found = evaluate(model, x).stack()
            wanted = torch.stack([whole(one) for one in x.chunk(MICROBATCHES)])
            torch.testing.assert_close(found, wanted.detach())
    x = torch.randn(8, WIDTH)
    ran_here(train, model, x)
    train_loss(whole, x)
    agree(model, whole)


def autocast_around_a_step_gives_the_bits_of_uncut_microbatches() -> None:
    """Gradients in full precision differ by some percent; those of a loop under autocast do not."""
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    for _ in range(3):
        x = torch.randn(8, WIDTH)
        with torch.autocast("cpu", torch.bfloat16):
            train(model, x)
            for one in x.chunk(MICROBATCHES):
                (whole(one) / MICROBATCHES).backward()
    wanted = dict(whole.named_parameters())
    for name, one in model.local_named_parameters():
        torch.testing.assert_close(one.grad, wanted[name].grad, rtol=1e-6, atol=1e-8, msg=name)


def step_functions_may_take_turns() -> None:
    """Each keeps to its own thread and habits, and draws what it drew alone."""
    model, whole = wrapped(nn.Sequential(chain(), Loss()))

    @smp.step
    def twice(model, x):
        loss = 2 * model(x)
        model.backward(loss.sum())

    for number in range(3):
        x = torch.randn(8, WIDTH)
        train(model, x)
        train_loss(whole, x)
        twice(model, x)
        for _ in range(2):
            train_loss(whole, x)
        with torch.no_grad():
            found = evaluate(model, x).stack() if number != 1 else None
        if found is not None:
            torch.testing.assert_close(
                found, torch.stack([whole(one) for one in x.chunk(MICROBATCHES)]).detach()
            )
    ran_here(train, model, x)
    train_loss(whole, x)
    agree(model, whole)


def an_interleaved_schedule_draws_what_the_plain_one_draws() -> None:
    """Two stages on a rank: functions wait on threads; the numbers are the same."""
    found = []
    for pipeline in ("Interleaved1F1B", "1F1B"):
        begin_with(**({"pipeline": pipeline} if pipeline != "1F1B" else {}))
        torch.manual_seed(11)
        model, _ = wrapped(nn.Sequential(chain(nn.Dropout(0.4)), Loss()))

        @smp.step
        def step(model, x):
            loss = model(functional.dropout(x, 0.2))
            model.backward(loss)
            return loss

        x = torch.randn(8, WIDTH)
        found.append([step(model, x).stack() for _ in range(3)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(found[0][0], found[0][1])


CHECKS = (
    few_microbatches_may_be_active,
    gradients_may_be_asked_for_in_the_function,
    modes_around_a_step_hold_in_it_and_no_longer,
    autocast_around_a_step_gives_the_bits_of_uncut_microbatches,
    step_functions_may_take_turns,
    an_interleaved_schedule_draws_what_the_plain_one_draws,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
