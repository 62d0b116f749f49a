"""Checks of pipelines that are repeated, each run by all ranks of one job of two stages and two
replicas: `ranks_replicas.py`."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

import muster_modelparallel as smp
from muster_modelparallel.run import session as sessions
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give
from tests.model_parallel.support.tied import Tied

WIDTH, MICROBATCHES, BATCH = 6, 4, 8
TINY_MB = 60 / 2**20  # so that most parameters have a bucket of their own


def main() -> None:
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))


def begin() -> None:
    smp.init({"pipeline_parallel_degree": 2, "ddp": True, "microbatches": MICROBATCHES})
    torch.manual_seed(5)


@smp.step
def train(model, x, y):
    loss = functional.mse_loss(model(x), y)
    model.backward(loss)
    return loss


def layers(count: int = 6) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)])


def gradients(net: nn.Module, steps: int, whole: nn.Module | None = None, **arguments):
    """By name, of what this rank holds, after steps that add up; `whole` does the same on the
    batches of all replicas. And the model."""
    torch.manual_seed(6)
    sessions.current().model = sessions.current().cut_steps = None
    model = smp.DistributedModel(net, bucket_cap_mb=TINY_MB, **arguments)
    for _ in range(steps):
        x, y = (torch.randn(BATCH * smp.dp_size(), WIDTH) for _ in range(2))
        mine = slice(smp.dp_rank() * BATCH, (smp.dp_rank() + 1) * BATCH)
        train(model, x[mine], y[mine])
        if whole is not None:
            functional.mse_loss(whole(x), y).backward()
    return {name: one.grad for name, one in model.local_named_parameters()}, model


def gradients_are_the_same_bits_with_and_without_overlap() -> None:
    for net in (layers(), Tied(WIDTH, layers())):
        whole = copy.deepcopy(net)
        plain, _ = gradients(copy.deepcopy(net), 4, whole, overlapping_allreduce=False)
        wanted = {name: one.grad for name, one in whole.named_parameters()}
        found, _ = gradients(net, 4)
        assert found.keys() == plain.keys() and found
        for name, grad in found.items():
            assert torch.equal(grad, plain[name]), name
            torch.testing.assert_close(grad, wanted[name], rtol=1e-5, atol=1e-6)


def averaging_begins_while_the_last_backward_runs() -> None:
    for overlaps in (True, False):
        _, model = gradients(layers(), 2, overlapping_allreduce=overlaps)
        reducer = model._reducer
        first = next(iter(model.local_parameters()))  # the last one to get a gradient
        started: list[int] = []
        first.register_post_accumulate_grad_hook(lambda _: started.append(reducer.started))  # noqa: B023
        x = torch.randn(BATCH, WIDTH)
        train(model, x, x)
        assert len(started) == MICROBATCHES and not any(started[:-1]), started
        assert (started[-1] >= 2) is overlaps, started


def averaging_begins_in_the_last_step_of_several_passes_alone() -> None:
    _, model = gradients(layers(), 4, backward_passes_per_step=2)
    reducer = model._reducer
    started: list[int] = []
    first = next(iter(model.local_parameters()))
    first.register_post_accumulate_grad_hook(lambda _: started.append(reducer.started))
    x = torch.randn(BATCH, WIDTH)
    for _ in range(2):
        train(model, x, x)
    assert not any(started[:-1]) and started[-1] >= 2, started


def gradients_of_tied_parameters_are_averaged_when_they_are_summed() -> None:
    _, model = gradients(Tied(WIDTH, layers()), 2)
    reducer = model._reducer
    started: list[int] = []
    reducer.reduce, reduce = lambda: started.append(reducer.started), reducer.reduce
    x = torch.randn(BATCH, WIDTH)
    train(model, x, x)
    reduce()
    assert started == [len(reducer._buckets) - 1], (started, len(reducer._buckets))


def with_two_stages_on_a_rank_the_first_ones_gradients_come_last() -> None:
    over()
    smp.init({"pipeline_parallel_degree": 2, "ddp": True, "pipeline": "Interleaved1F1B",
              "microbatches": MICROBATCHES})  # fmt: skip
    net = layers()
    whole = copy.deepcopy(net)
    plain, _ = gradients(copy.deepcopy(net), 3, whole, overlapping_allreduce=False)
    found, model = gradients(net, 3)
    for name, grad in found.items():
        assert torch.equal(grad, plain[name]), name
        wanted = dict(whole.named_parameters())[name].grad
        torch.testing.assert_close(grad, wanted, rtol=1e-5, atol=1e-6)
    reducer = model._reducer
    started: list[int] = []
    first = next(iter(model.local_parameters()))
    first.register_post_accumulate_grad_hook(lambda _: started.append(reducer.started))
    x = torch.randn(BATCH, WIDTH)
    train(model, x, x)
    later = sum(name in model.stages.others(smp.pp_rank()) for name in found)
    assert len(model.stages.rank_of) == 4 and later
    assert not any(started[:-1]) and started[-1] >= later, (started, later)


class Centred(nn.Module):
    """Both its ends use the mean of its inputs so far."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return self.layers(x - self.mean) + self.mean


def all_stages_that_read_a_buffer_have_that_of_the_first_replica() -> None:
    _, model = gradients(Centred(), 3)
    model._broadcast_buffers()
    means = smp.allgather(model.module.mean.tolist(), smp.WORLD)
    assert all(mean == means[0] for mean in means), means


CHECKS = (
    all_stages_that_read_a_buffer_have_that_of_the_first_replica,
    gradients_are_the_same_bits_with_and_without_overlap,
    averaging_begins_while_the_last_backward_runs,
    averaging_begins_in_the_last_step_of_several_passes_alone,
    gradients_of_tied_parameters_are_averaged_when_they_are_summed,
    with_two_stages_on_a_rank_the_first_ones_gradients_come_last,
)

if __name__ == "__main__":
    main()
