"""Checks of what keys do to a model that is cut, of names that tell what a rank has of it, and of
reentrant checkpoints, each run by all of the two ranks of one job: `ranks_keys.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import muster_modelparallel as smp
from muster_modelparallel.errors import SplitError
from muster_modelparallel.run import session as sessions
from muster_modelparallel.run.offload import Offload, SavedTensors
from muster_modelparallel.shape.plan import Plan
from tests.model_parallel.steps.ranks_steps import (
    WIDTH,
    Loss,
    agree,
    begin,
    begin_with,
    chain,
    everyones,
    is_first,
    train_loss,
    train_whole,
    trained,
    wrapped,
)
from tests.model_parallel.support import graphs
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give
from tests.model_parallel.support.reentrant import Reentrant

SIMPLE = {"pipeline": "simple"}
LEAVING = {**SIMPLE, "offload_activations": True}
# keys, and what the first and the last rank then do in a step: forward, backward, and load what
# backward needs from where it lay meanwhile
ORDERS = (
    ({}, "FFBFBFBB", "FBFBFBFB"),
    ({"pipeline": "interleaved", "active_microbatches": 1}, "FBFBFBFB", "FBFBFBFB"),
    (SIMPLE, "FFFFBBBB", "FFFFBBBB"),
    ({**SIMPLE, "active_microbatches": 2}, "FFBBFFBB", "FFBBFFBB"),
    ({**LEAVING, "activation_loading_horizon": 1}, *["FFFLFLBLBLBB"] * 2),
    ({**LEAVING, "activation_loading_horizon": 3}, *["FLFLFLFLBBBB"] * 2),
)


def the_order_of_work_is_that_of_the_keys() -> None:
    for keys, *orders in ORDERS:
        begin_with(**keys)
        found = order_of_work()
        assert found == orders[smp.pp_rank()], (keys, found)


def order_of_work() -> str:
    """What this rank does in a step."""
    torch.manual_seed(5)
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    session, done, load = sessions.current(), [], SavedTensors.load
    if session.config.offload_activations and session.offload is None:  # there is no GPU
        horizon = session.config.activation_loading_horizon
        session.offload = Offload(session.mesh.device, horizon, least_bytes=1)

    @smp.step
    def train(x):
        loss = model(x)
        model.backward(loss)
        return loss

    def told(saved):
        done.append("L")
        load(saved)

    SavedTensors.load = told
    try:
        for number in range(3):
            x = torch.randn(8, WIDTH)
            train(x)
            train_loss(whole, x)
            if number == 1:
                name, first = next(iter(model.local_named_parameters()))
                owner = model.module.get_submodule(name.rpartition(".")[0])
                owner.register_forward_pre_hook(lambda *_: done.append("F"))
                first.register_hook(lambda _: done.append("B"))
                done.clear()
    finally:
        SavedTensors.load = load
    agree(model, whole)
    return "".join(done)


def costs_are_flops_where_tracing_is_skipped() -> None:
    folder = everyones(tempfile.mkdtemp() if is_first() else "")[0]
    for skips, costs in ((False, "measured"), (True, "flops")):
        file = str(Path(folder, f"{costs}.json"))
        begin_with(skip_tracing=skips, partition_file=file)
        model, _ = wrapped(chain())
        trained(model, torch.ones(8, WIDTH), torch.ones(8, WIDTH))
        assert Plan.load(file).profile.costs == costs


def a_model_is_told_while_it_is_traced() -> None:
    seen = []

    class Asking(nn.Linear):
        def forward(self, x):
            seen.append(smp.is_tracing())
            return super().forward(x)

    model, _ = wrapped(nn.Sequential(Asking(WIDTH, WIDTH), chain()))
    x = torch.ones(8, WIDTH)
    trained(model, x, x)
    assert seen[0] is True and not smp.is_tracing()
    seen.clear()
    trained(model, x, x)
    assert not any(seen) and bool(seen) == is_first()


def what_is_local_is_what_this_rank_has() -> None:
    begin_with(skip_tracing=True)  # so that cuts lie between layers
    model, whole = wrapped(chain(nn.BatchNorm1d(WIDTH)))
    x = torch.randn(8, WIDTH)
    trained(model, x, x)
    layers = "012" if is_first() else "345"
    for local, of_all in (
        (model.local_named_parameters, whole.named_parameters),
        (model.local_named_buffers, whole.named_buffers),
        (model.local_named_modules, whole.named_modules),
    ):
        wanted = [name for name, _ in of_all() if name[:1] in layers]
        assert [name for name, _ in local()] == wanted, (local.__name__, layers)
    for local, named in (
        (model.local_parameters, model.local_named_parameters),
        (model.local_buffers, model.local_named_buffers),
        (model.local_modules, model.local_named_modules),
    ):
        assert list(map(id, local())) == [id(one) for _, one in named()]
    begin_with(skip_tracing=True)
    shared = nn.Tanh()
    model, _ = wrapped(nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), shared) for _ in range(6)]))
    trained(model, x, x)
    assert any(one is shared for one in model.local_modules())


KINDS = (
    "of modules", "within modules", "of code", "of pieces", "of views", "changed in place",
    "of all",
)  # fmt: skip


def reentrant_checkpoints_give_the_gradients_of_the_whole_model_or_are_refused() -> None:
    refused = set()
    for kind in KINDS:
        begin_with()
        model, whole = wrapped(Reentrant(kind).eval())  # dropout draws other numbers there
        try:
            for _ in range(3):
                x, y = (torch.randn(8, graphs.WIDTH) for _ in range(2))
                trained(model, x, y)
                train_whole(whole, x, y)
        except SplitError as error:
            assert "(reentrant checkpoint)" in str(error), error
            refused.add(kind)
        else:
            agree(model, whole)
    assert refused == {"of all"}, refused


CHECKS = (
    the_order_of_work_is_that_of_the_keys,
    costs_are_flops_where_tracing_is_skipped,
    a_model_is_told_while_it_is_traced,
    what_is_local_is_what_this_rank_has,
    reentrant_checkpoints_give_the_gradients_of_the_whole_model_or_are_refused,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))
