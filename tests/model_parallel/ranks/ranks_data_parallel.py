"""Checks of data parallelism, each run by all ranks of one job: `ranks_data_parallel.py BACKEND`.

Ranks hold equal shares of a batch; what they come to is compared with one process that has it all.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from muster_modelparallel.errors import StepError
from muster_modelparallel.run import session as sessions
from muster_modelparallel.run.step import step
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.grad_scaler import GradScaler
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer
from tests.model_parallel.support.checks import said_by
from tests.model_parallel.support.ranks import give

SHARE = 8  # examples of each rank
TINY_MB = 60 / 2**20  # so that most parameters have a bucket of their own


def main(backend: str) -> None:
    sessions.init({"ddp": True, "ddp_dist_backend": backend})
    torch.set_num_threads(1)
    said = said_by(CHECKS, lambda: begin(microbatches=1))
    found = sessions.current().mesh.backend
    give({"backend": found, "said": said})


def begin(microbatches: int) -> None:
    """A session without a model, as after `init`."""
    session = sessions.current()
    session.model = session.optimizer = session.microbatch = None
    session.config = replace(session.config, microbatches=microbatches)
    torch.manual_seed(5)


def rank() -> int:
    return sessions.current().mesh.rank


def size() -> int:
    return sessions.current().mesh.size


def build(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2))


def batch(seed: int = 2):
    """The whole one."""
    torch.manual_seed(seed)
    return torch.randn(SHARE * size(), 6), torch.randn(SHARE * size(), 2)


def mine(tensor):
    return tensor.chunk(size())[rank()]


def everyones(tensor):
    """This tensor of all ranks."""
    found = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(found, tensor.contiguous(), group=sessions.current().mesh.group(GroupKind.DP))
    return found


def is_alike(tensor) -> bool:
    return all(torch.equal(each, tensor) for each in everyones(tensor))


def agree(module: nn.Module, reference: nn.Module, atol: float = 1e-6) -> None:
    for (name, one), other in zip(module.named_parameters(), reference.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=atol), (name, (one - other).abs().max())


def gradients_agree(module: nn.Module, reference: nn.Module) -> None:
    for (name, one), other in zip(module.named_parameters(), reference.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=0, atol=1e-6), name
            assert is_alike(one.grad), f"{name} differs between ranks"


def train_step(model):
    @step
    def train(x, y):
        loss = mse_loss(model(x), y)
        model.backward(loss)
        return loss

    return train


def train_both(microbatches: int, **options) -> DistributedModel:
    """Five steps here on shares, and in one process on the whole; ends with equal parameters."""
    begin(microbatches)
    module = build()
    reference = copy.deepcopy(module)
    model = DistributedModel(module, bucket_cap_mb=TINY_MB, **options)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    other = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    train = train_step(model)
    for number in range(5):
        x, y = batch(10 + number)
        optimizer.zero_grad()
        train(mine(x), mine(y))
        optimizer.step()
        other.zero_grad()
        mse_loss(reference(x), y).backward()
        other.step()
    agree(module, reference)
    return model


def five_steps_equal_one_process() -> None:
    for microbatches in (1, 4):
        for overlaps in (True, False):
            for as_view in (True, False):
                train_both(
                    microbatches, overlapping_allreduce=overlaps, gradient_as_bucket_view=as_view
                )


def buckets_are_on_their_way_during_backward_only_with_overlapping() -> None:
    for overlaps in (True, False):
        for microbatches in (1, 4):
            model = train_both(microbatches, overlapping_allreduce=overlaps)
            seen = []
            model._reducer.reduce, reduce = (  # type: ignore[method-assign]
                lambda model=model, seen=seen: seen.append(model._reducer.started),
                model._reducer.reduce,
            )
            x, y = batch()
            train_step(model)(mine(x), mine(y))
            reduce()
            count = len(model._reducer._buckets)
            assert count >= 4 and seen == [count if overlaps else 0], (seen, count)


def with_views_gradients_lie_in_the_buckets() -> None:
    for as_view in (True, False):
        model = train_both(2, gradient_as_bucket_view=as_view)
        inside = [
            parameter.grad.data_ptr() == view.data_ptr()
            for bucket in model._reducer._buckets
            for parameter, view in zip(bucket.parameters, bucket._views, strict=True)
        ]
        assert all(inside) if as_view else not any(inside)


def parameters_and_buffers_are_the_first_ranks() -> None:
    module = build(seed=rank())
    module.register_buffer("flag", torch.tensor([rank() == 0, True]))
    module.register_buffer("number", torch.tensor(rank() + 7))
    module.register_buffer("exact", torch.full((3, 2), float(rank()), dtype=torch.float64))
    module.register_parameter("empty", nn.Parameter(torch.ones(0)))
    identities = [id(each) for each in module.parameters()]
    DistributedModel(module)
    agree(module[0], build(seed=0)[0], atol=0)
    assert module.flag.tolist() == [True, True] and module.number.item() == 7
    assert module.exact.tolist() == [[0, 0]] * 3
    assert [id(each) for each in module.parameters()] == identities


def buffers_are_the_first_ranks_when_a_step_begins() -> None:
    for broadcast in (True, False):
        begin(microbatches=2)
        module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        model = DistributedModel(module, broadcast_buffers=broadcast)
        seen = []

        @step
        def train(x, y, model=model, module=module, seen=seen):
            seen.append(module[1].running_mean.clone())
            model.backward(mse_loss(model(x), y))

        x, y = batch()
        train(mine(x), mine(y))
        assert not is_alike(module[1].running_mean), "each rank has seen its own share"
        train(mine(x), mine(y))
        assert is_alike(seen[2]) is broadcast
        assert not is_alike(seen[3]), "once for each step, not for each microbatch"
        seen.clear()
        model.eval()
        module[1].running_mean.fill_(rank())
        train(mine(x), mine(y))
        assert not is_alike(seen[0]), "in training only"


def gradients_of_several_steps_add_up() -> None:
    for as_view in (True, False):
        begin(microbatches=2)
        module = build()
        reference = copy.deepcopy(module)
        model = DistributedModel(module, gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_MB)
        train = train_step(model)
        for number in range(4):
            x, y = batch(number)
            train(mine(x), mine(y))
            mse_loss(reference(x), y).backward()
            gradients_agree(module, reference)


class Branches(nn.Module):
    """Its `odd` is used by rank 1 alone, its `never` by none."""

    def __init__(self):
        super().__init__()
        self.all, self.odd, self.never = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x, uses_odd):
        return self.all(x) + (self.odd(x) if uses_odd else 0)


def parameters_without_gradient_count_as_zeros() -> None:
    for options in ({}, {"overlapping_allreduce": False}, {"gradient_as_bucket_view": True}):
        begin(microbatches=2)
        torch.manual_seed(1)
        module = Branches()
        reference = copy.deepcopy(module)
        model = DistributedModel(module, bucket_cap_mb=TINY_MB, **options)

        @step
        def train(x, y, uses_odd, model=model):
            model.backward(mse_loss(model(x, uses_odd), y))

        for number in range(3):
            x, y = batch(number)
            train(mine(x), mine(y), rank() == 1)
            for place, (one, other) in enumerate(
                zip(x.chunk(size()), y.chunk(size()), strict=True)
            ):
                (mse_loss(reference(one, place == 1), other) / size()).backward()
            gradients_agree(module, reference)
        assert module.never.weight.grad is None


def a_rank_that_does_not_get_to_backward_keeps_nobody_waiting() -> None:
    begin(microbatches=2)
    module = build()
    reference = copy.deepcopy(module)
    model = DistributedModel(module)

    @step
    def train(x, y, is_bad):
        loss = mse_loss(model(x), y)
        if not is_bad:
            model.backward(loss)

    for _ in range(2):
        x, y = batch()
        train(mine(x), mine(y), rank() == 1)
        for place, (one, other) in enumerate(zip(x.chunk(size()), y.chunk(size()), strict=True)):
            if place != 1:
                (mse_loss(reference(one), other) / size()).backward()
        gradients_agree(module, reference)


def several_backward_calls_in_a_step() -> None:
    for as_view in (True, False):
        for microbatches in (1, 2):
            begin(microbatches)
            module = build()
            reference = copy.deepcopy(module)
            model = DistributedModel(module, gradient_as_bucket_view=as_view, bucket_cap_mb=TINY_MB)

            @step
            def train(x, y, times, model=model):
                for _ in range(times):
                    model.backward(mse_loss(model(x), y))

            for number, times in enumerate((2, 2, 1, 2)):
                x, y = batch(number)
                train(mine(x), mine(y), times if rank() else 2)  # ranks need not call it alike
                for place, (one, other) in enumerate(
                    zip(x.chunk(size()), y.chunk(size()), strict=True)
                ):
                    loss = mse_loss(reference(one), other) * (times if place else 2)
                    (loss / size()).backward()
                gradients_agree(module, reference)
                for each in (module, reference):
                    each.zero_grad()


def backward_once_more_when_averaging_has_begun_is_refused() -> None:
    for overlaps in (True, False):
        begin(microbatches=1)
        module = build()
        reference = copy.deepcopy(module)
        model = DistributedModel(module, bucket_cap_mb=TINY_MB, overlapping_allreduce=overlaps)

        @step
        def train(x, y, times, model=model):
            for _ in range(times):
                model.backward(mse_loss(model(x), y))

        for number, times in enumerate((1, 1, 2, 2)):
            for each in (module, reference):
                each.zero_grad()
            x, y = batch(number)
            given = (mine(x), mine(y), times)
            if overlaps and number == 2:
                refused(lambda given=given, train=train: train(*given), "more often in this step")
                continue
            train(*given)
            (mse_loss(reference(x), y) * times).backward()
            gradients_agree(module, reference)


def a_parameter_used_by_two_checkpointed_parts() -> None:
    for as_view in (True, False):
        begin(microbatches=2)
        torch.manual_seed(1)
        module = nn.Linear(6, 6)
        reference = copy.deepcopy(module)
        model = DistributedModel(module, gradient_as_bucket_view=as_view)

        @step
        def train(x, model=model, module=module):
            y = checkpoint(module, x.requires_grad_(), use_reentrant=True)
            model.backward(checkpoint(module, y, use_reentrant=True).square().mean())

        for number in range(3):
            x, _ = batch(number)
            train(mine(x).clone())
            reference(reference(x)).square().mean().backward()
            gradients_agree(module, reference)


def averaging_waits_for_so_many_passes() -> None:
    for as_view in (True, False):
        begin(microbatches=2)
        module = build()
        reference = copy.deepcopy(module)
        model = DistributedModel(
            module, backward_passes_per_step=2, gradient_as_bucket_view=as_view
        )
        train = train_step(model)
        for number in range(4):
            x, y = batch(number)
            train(mine(x), mine(y))
            mse_loss(reference(x), y).backward()
            is_due = number % 2 == 1
            assert model._reducer.started == 0, "nothing is on its way"
            assert is_alike(module[0].weight.grad) is is_due
            if is_due:
                gradients_agree(module, reference)


def a_look_at_the_model_may_be_one_ranks_alone() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    model = DistributedModel(module)
    if rank() == 1:
        with torch.no_grad():
            model(batch()[0])
            step(model)(batch()[0])
    assert not is_alike(module[1].running_mean)
    model(batch()[0])
    assert is_alike(module[1].running_mean), "a pass with gradients begins with equal buffers"


def an_optimizer_does_not_use_what_is_not_averaged() -> None:
    for use in ("step", "clip"):
        begin(microbatches=1)
        module = build()
        model = DistributedModel(module, backward_passes_per_step=2)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        x, y = batch()
        train_step(model)(mine(x), mine(y))
        norm = optimizer.clip_master_grads(1.0) if use == "clip" else 0.0
        optimizer.step()
        assert is_alike(module[0].weight) and is_alike(torch.tensor(norm))


def an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    for is_after_averaging in (False, True):
        begin(microbatches=1)
        module = nn.Linear(6, 2).half()
        model = DistributedModel(module)
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            dynamic_loss_scale=True, init_scale=4.0, scale_window=2,
        )  # fmt: skip
        before = module.weight.detach().clone()

        @step
        def train(x, factor, model=model):
            model.backward(model(x).float().sum() * factor)

        x, _ = batch()
        bad = rank() == 1
        train(mine(x).half(), 1e30 if bad and not is_after_averaging else 1e-3)
        if bad and is_after_averaging:
            module.weight.grad[0, 0] = float("inf")
        optimizer.step()
        assert optimizer.overflow and torch.equal(module.weight, before)
        assert optimizer.loss_scale == 2.0
        optimizer.zero_grad()
        train(mine(x).half(), 1e-3)
        optimizer.step()
        assert not optimizer.overflow and not torch.equal(module.weight, before)
        assert is_alike(module.weight)


def outside_a_step_function_gradients_are_averaged_at_once() -> None:
    module = build()
    reference = copy.deepcopy(module)
    model = DistributedModel(module)
    for number in range(3):
        x, y = batch(number)
        model.backward(mse_loss(model(mine(x)), mine(y)))
        mse_loss(reference(x), y).backward()
        gradients_agree(module, reference)


def loss_backward_outside_a_step_function_is_refused_by_the_optimizer() -> None:
    model = DistributedModel(build())
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = batch()
    model.backward(mse_loss(model(mine(x)), mine(y)))
    optimizer.step()
    mse_loss(model(mine(x)), mine(y)).backward()
    refused(optimizer.step, "model.backward(loss)")


def a_script_without_model_backward_is_refused_by_the_optimizer() -> None:
    for thaws in (False, True):
        begin(microbatches=1)
        module = build()
        model = DistributedModel(module.requires_grad_(not thaws))
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        module.requires_grad_(True)
        x, y = batch()
        used = model if thaws else module  # which may be called past the model
        mse_loss(used(mine(x)), mine(y)).backward()
        with torch.no_grad():
            step(model)(mine(x))  # which averages nothing
        refused(optimizer.step, "model.backward(loss)")
        refused(lambda model=model: model.clip_grad_norm_(1.0), "model.backward(loss)")


def clipping_comes_after_averaging() -> None:
    for microbatches in (1, 2):
        begin(microbatches)
        module = build()
        reference = copy.deepcopy(module)
        model = DistributedModel(module, backward_passes_per_step=2)
        x, y = batch()
        train_step(model)(mine(x), mine(y))
        norm = model.clip_grad_norm_(0.01)
        mse_loss(reference(x), y).backward()
        assert torch.allclose(norm, nn.utils.clip_grad_norm_(reference.parameters(), 0.01))
        gradients_agree(module, reference)


def a_grad_scaler_looks_at_averages() -> None:
    begin(microbatches=1)
    module = nn.Linear(6, 2)
    model = DistributedModel(module, backward_passes_per_step=2)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = GradScaler(init_scale=4.0)
    train = step(lambda x, factor: model.backward(scaler.scale(model(x).sum() * factor)))
    x, _ = batch()
    for number in range(2):
        before = module.weight.detach().clone()
        optimizer.zero_grad()
        train(mine(x), float("inf") if rank() == 1 and number == 0 else 1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0, "every rank has seen the infinity of one"
        assert torch.equal(module.weight, before) is (number == 0) and is_alike(module.weight)


def gradients_are_not_used_in_a_step_function() -> None:
    model = DistributedModel(build())

    @step
    def train(x, y):
        model.backward(mse_loss(model(x), y))
        model.clip_grad_norm_(1.0)

    x, y = batch()
    refused(lambda: train(mine(x), mine(y)), "used in a step function")


def collectives_of_the_script_may_come_anywhere() -> None:
    begin(microbatches=1)
    module = build()
    reference = copy.deepcopy(module)
    model = DistributedModel(module, bucket_cap_mb=TINY_MB)
    group = sessions.current().mesh.group(GroupKind.DP)
    own = []

    @step
    def train(x, y):
        loss = mse_loss(model(x), y)
        for is_first in (True, False):
            if is_first == (rank() == 0):
                own.append(torch.ones(1001))
                own.append(dist.all_reduce(own[-1], group=group, async_op=True))
            if is_first:
                model.backward(loss)

    for number in range(3):
        x, y = batch(number)
        train(mine(x), mine(y))
        own[-1].wait()
        assert own[-2].tolist() == [size()] * 1001
        mse_loss(reference(x), y).backward()
        gradients_agree(module, reference)


def parameters_that_are_thawed_in_a_step_function() -> None:
    for frozen in (
        ["0.weight"],
        ["4.weight", "4.bias"],
        [n for n, _ in build().named_parameters()],
    ):
        for overlaps, is_first_only in ((True, False), (False, False), (True, True)):
            begin(microbatches=2)
            module = build()
            reference = copy.deepcopy(module)
            model = DistributedModel(module, bucket_cap_mb=TINY_MB, overlapping_allreduce=overlaps)
            chosen = [module.get_parameter(name) for name in frozen]

            @step
            def train(x, y, model=model, chosen=chosen, is_first_only=is_first_only):
                for each in chosen:
                    each.requires_grad_(True)
                model.backward(mse_loss(model(x), y))
                for each in chosen:
                    each.requires_grad_(is_first_only)

            for number in range(4):
                if number == 0 or not is_first_only:
                    for each in chosen:
                        each.requires_grad_(False)
                x, y = batch(number)
                train(mine(x), mine(y))
                mse_loss(reference(x), y).backward()
                gradients_agree(module, reference)


def a_parameter_thawed_on_one_rank_is_averaged_on_all() -> None:
    begin(microbatches=1)
    module = Branches()
    reference = copy.deepcopy(module)
    model = DistributedModel(module.requires_grad_(False))

    @step
    def train(x, y):
        module.all.requires_grad_(True)
        module.odd.requires_grad_(rank() == 1)
        model.backward(mse_loss(model(x, True), y))
        module.requires_grad_(False)

    for number in range(2):
        x, y = batch(number)
        train(mine(x), mine(y))
        for place, (one, other) in enumerate(zip(x.chunk(size()), y.chunk(size()), strict=True)):
            reference.odd.requires_grad_(place == 1)
            reference.never.requires_grad_(False)
            (mse_loss(reference(one, True), other) / size()).backward()
        gradients_agree(module, reference)
        assert module.never.weight.grad is None


def frozen_parameters_have_no_bucket() -> None:
    begin(microbatches=1)
    module = build()
    module[0].requires_grad_(False)
    model = DistributedModel(module)
    x, y = batch()
    train_step(model)(mine(x), mine(y))
    (bucket,) = model._reducer._buckets
    assert bucket.names == ["4.bias", "4.weight", "2.bias", "2.weight"]


def a_parameter_thawed_when_averaging_is_over_is_refused_by_name() -> None:
    begin(microbatches=1)
    module = build()
    module[0].weight.requires_grad_(False)
    model = DistributedModel(module)
    x, y = batch()
    train = train_step(model)
    train(mine(x), mine(y))

    @step
    def bad(x, y):
        loss = mse_loss(model(x), y)
        model.backward(loss)
        module[0].weight.grad = torch.ones(9, 6)

    refused(lambda: bad(mine(x), mine(y)), "parameter 0.weight began to need a gradient")
    module[0].weight.grad = None
    train(mine(x), mine(y))


def parameters_that_are_frozen_and_thawed() -> None:
    begin(microbatches=2)
    module = build()
    module[0].weight.requires_grad = False
    reference = copy.deepcopy(module)
    model = DistributedModel(module, bucket_cap_mb=TINY_MB)
    train = train_step(model)
    for number in range(6):
        if number == 3:
            for each in (module, reference):
                each[0].weight.requires_grad = True
                each[2].bias.requires_grad = False
        x, y = batch(number)
        for each in (module, reference):
            each.zero_grad()
        train(mine(x), mine(y))
        mse_loss(reference(x), y).backward()
        gradients_agree(module, reference)


def parameters_of_several_types() -> None:
    begin(microbatches=2)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(3, 3).double()
            self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, x):
            return (self.b(self.a(x).double()) * self.turn).abs().float()[:, :2]

    torch.manual_seed(1)
    module = Mixed()
    reference = copy.deepcopy(module)
    model = DistributedModel(module)
    train = train_step(model)
    for number in range(2):
        x, y = batch(number)
        train(mine(x), mine(y))
        mse_loss(reference(x), y).backward()
        gradients_agree(module, reference)


def sparse_gradients_are_refused_by_name() -> None:
    module = nn.Embedding(4, 2, sparse=True)
    model = DistributedModel(nn.ModuleDict({"words": module}))
    train = step(lambda ids: model.backward(module(ids).sum()))
    refused(lambda: train(torch.tensor([1, 2])), "words.weight has a sparse gradient")


def ranks_with_other_models_are_refused() -> None:
    module = nn.Linear(6, 3 if rank() == 1 else 2)
    refused(lambda: DistributedModel(module), "the model of rank 1 (2 parameters and buffers)")


def a_step_that_raised_leaves_nothing_behind() -> None:
    begin(microbatches=2)
    module = build()
    reference = copy.deepcopy(module)
    model = DistributedModel(module, bucket_cap_mb=TINY_MB)
    train = train_step(model)
    x, y = batch()

    @step
    def bad(x, y):
        model.backward(mse_loss(model(x), y))
        if sessions.current().microbatch.index == 1:
            raise ValueError("all ranks alike")

    for _ in range(3):
        for each in (module, reference):
            each.zero_grad()
        train(mine(x), mine(y))
        mse_loss(reference(x), y).backward()
        gradients_agree(module, reference)
        try:
            bad(mine(x), mine(y))
        except ValueError:
            pass


def refused(call, words: str) -> None:
    try:
        call()
    except StepError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


CHECKS = (
    five_steps_equal_one_process,
    buckets_are_on_their_way_during_backward_only_with_overlapping,
    with_views_gradients_lie_in_the_buckets,
    parameters_and_buffers_are_the_first_ranks,
    buffers_are_the_first_ranks_when_a_step_begins,
    gradients_of_several_steps_add_up,
    parameters_without_gradient_count_as_zeros,
    a_rank_that_does_not_get_to_backward_keeps_nobody_waiting,
    several_backward_calls_in_a_step,
    backward_once_more_when_averaging_has_begun_is_refused,
    a_parameter_used_by_two_checkpointed_parts,
    averaging_waits_for_so_many_passes,
    a_look_at_the_model_may_be_one_ranks_alone,
    an_optimizer_does_not_use_what_is_not_averaged,
    an_overflow_on_one_rank_skips_the_step_on_all,
    outside_a_step_function_gradients_are_averaged_at_once,
    loss_backward_outside_a_step_function_is_refused_by_the_optimizer,
    a_script_without_model_backward_is_refused_by_the_optimizer,
    clipping_comes_after_averaging,
    a_grad_scaler_looks_at_averages,
    gradients_are_not_used_in_a_step_function,
    collectives_of_the_script_may_come_anywhere,
    parameters_that_are_thawed_in_a_step_function,
    a_parameter_thawed_on_one_rank_is_averaged_on_all,
    frozen_parameters_have_no_bucket,
    a_parameter_thawed_when_averaging_is_over_is_refused_by_name,
    parameters_that_are_frozen_and_thawed,
    parameters_of_several_types,
    sparse_gradients_are_refused_by_name,
    ranks_with_other_models_are_refused,
    a_step_that_raised_leaves_nothing_behind,
)

if __name__ == "__main__":
    main(sys.argv[1])
