"""Checks of what a model keeps from one pass to the next, each run by all ranks of one job."""

from __future__ import annotations

import copy
import logging
import math
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import muster_modelparallel as smp
from muster_modelparallel.errors import SplitError
from tests.model_parallel.steps.ranks_steps import (
    MICROBATCHES,
    WIDTH,
    batch,
    begin,
    begin_with,
    chain,
    evaluate,
    everyones,
    refused,
    train,
    train_whole,
    wrapped,
)
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give

Glue = Callable[[Any, torch.Tensor], torch.Tensor]


class Keeping(nn.Module):
    """Its own forward changes buffers, before and after its blocks."""

    def __init__(self, first: Glue, last: Glue) -> None:
        super().__init__()
        self.blocks = chain()
        self.register_buffer("count", torch.tensor(0.0))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.first, self.last = first, last

    def forward(self, x):
        x = self.first(self, x)
        for block in self.blocks:
            x = block(x)
        return self.last(self, x)


def nothing(net, x):
    return x


def changed(net, x):
    if net.training:
        net.count += 1
        net.mean = net.mean * 0.9 + x.detach().mean(0) * 0.1
    return x


def changed_and_used(net, x):
    return changed(net, x) * (1 + net.count) - net.mean


def used(net, x):
    return x * (1 + net.count) - net.mean


def used_in_evaluation(net, x):
    return x if net.training else used(net, x)


def states_agree(model, whole) -> None:
    found = model.state_dict()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def buffers_that_forward_itself_changes_are_those_of_one_process() -> None:
    for first, last in [
        (nothing, changed),
        (nothing, changed_and_used),
        (changed_and_used, used_in_evaluation),
        (changed_and_used, used),
    ]:
        begin()
        model, whole = wrapped(Keeping(first, last))
        for _ in range(2):
            x, y = batch()
            loss = train(model, x, y).reduce_mean()
            torch.testing.assert_close(loss, train_whole(whole, x, y), msg=str((first, last)))
        states_agree(model, whole)
        for one in (model, whole):
            one.eval()
        with torch.no_grad():
            wanted = torch.cat([whole(part) for part in x.chunk(MICROBATCHES)])
            torch.testing.assert_close(evaluate(model, x).concat(), wanted)


def buffers_that_are_loaded_come_to_all_stages_that_read_them() -> None:
    folder = everyones(tempfile.mkdtemp())[0]
    for kind in ("state_dict", "full", "partial", "pieces"):
        begin()
        model, whole = wrapped(Keeping(changed_and_used, used))
        given = batch()
        train(model, *given)
        train_whole(whole, *given)
        options = {"in_pieces": True} if kind == "pieces" else {"partial": kind == "partial"}
        state = copy.deepcopy(model.state_dict())
        smp.save_checkpoint(folder, kind, model=model, **options)
        train(model, *batch())
        if kind == "state_dict":
            model.load_state_dict(state)
        else:
            smp.resume_from_checkpoint(folder, kind, partial=kind != "full")
        x, y = batch()
        loss = train(model, x, y).reduce_mean()
        torch.testing.assert_close(loss, train_whole(whole, x, y), msg=kind)


def a_buffer_that_is_changed_on_another_stage_than_read_is_refused() -> None:
    model, _ = wrapped(Keeping(used, changed))
    with refused("buffer count, which is read and then changed", SplitError):
        train(model, *batch())
    begin()
    model, _ = wrapped(Keeping(used_in_evaluation, changed))
    train(model, *batch())
    model.eval()
    with refused("reads buffer count on stage 0, but", SplitError), torch.no_grad():
        evaluate(model, batch()[0])


def a_buffer_that_each_stage_of_a_rank_would_change_is_refused() -> None:
    begin_with(pipeline="Interleaved1F1B")
    model, _ = wrapped(Keeping(changed_and_used, used))
    with refused("buffer count is changed by code between modules", SplitError):
        train(model, *batch())


class Remembering(nn.Module):
    """Adds to its input what it has kept of its output, or of its input."""

    def __init__(self, of_output: bool) -> None:
        super().__init__()
        self.blocks = chain()
        self.of_output = of_output
        self.before = None

    def forward(self, x):
        before, found = self.before, x if self.before is None else x + self.before.mean()
        for block in self.blocks:
            found = block(found)
        self.before = (found if self.of_output else x).detach()
        return found if before is None else found + before.mean()


def what_forward_itself_keeps_is_that_of_one_process_or_nan() -> None:
    for of_output in (False, True):
        begin()
        model, whole = wrapped(Remembering(of_output))
        for _ in range(2):
            x, y = batch()
            found, wanted = train(model, x, y).reduce_mean(), train_whole(whole, x, y)
            torch.testing.assert_close(found, wanted + math.nan, equal_nan=True)


class Counting(nn.Module):
    """Reads a number at its begin that it changes at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = chain()
        self.count = 0

    def forward(self, x):
        found = self.blocks(x * (1 + self.count))
        self.count += 1
        return found


def a_number_that_a_stage_does_not_see_change_is_named() -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("muster_modelparallel").addHandler(handler)
    model, _ = wrapped(Counting())
    train(model, *batch())
    found = [line for line in said if line.startswith("Counting.count, which forward sets")]
    assert len(found) == (smp.pp_rank() == 0), said


def filled_once(net, x):
    if net.mask is None:
        net.mask = torch.arange(WIDTH) + x.detach()[:1] * 0
    return x * net.mask


def a_buffer_that_the_first_pass_fills_is_that_of_one_process() -> None:
    net = Keeping(filled_once, nothing)
    net.register_buffer("mask", None)
    model, whole = wrapped(net)
    for _ in range(2):
        x, y = batch()
        found = train(model, x, y).reduce_mean()
        torch.testing.assert_close(found, train_whole(whole, x, y))
    states_agree(model, whole)


CHECKS = (
    buffers_that_are_loaded_come_to_all_stages_that_read_them,
    a_number_that_a_stage_does_not_see_change_is_named,
    a_buffer_that_the_first_pass_fills_is_that_of_one_process,
    what_forward_itself_keeps_is_that_of_one_process_or_nan,
    buffers_that_forward_itself_changes_are_those_of_one_process,
    a_buffer_that_is_changed_on_another_stage_than_read_is_refused,
    a_buffer_that_each_stage_of_a_rank_would_change_is_refused,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
