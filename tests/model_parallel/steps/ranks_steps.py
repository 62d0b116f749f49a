"""Checks of steps of a model that is cut, each run by all ranks of one job: `ranks_steps.py`.

Each check begins anew with a model of its own; what it comes to is compared with one process.
"""

from __future__ import annotations

import copy
import gc
import os
import tempfile
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import muster_modelparallel as smp
from muster_modelparallel.errors import ModelParallelError, StepError
from muster_modelparallel.run import session as sessions
from muster_modelparallel.run.offload import Offload
from tests.model_parallel.support.checks import over, said_by
from tests.model_parallel.support.ranks import give
from tests.model_parallel.support.tied import Tied

MICROBATCHES = 4
WIDTH = 6


def main() -> None:
    torch.set_num_threads(1)
    give(said_by(CHECKS, begin, over))


def begin() -> None:
    begin_with()
    torch.manual_seed(5)


def is_first() -> bool:
    return smp.pp_rank() == 0


def wrapped(net: nn.Module):
    """The model that is cut, and the same whole."""
    whole = copy.deepcopy(net)
    return smp.DistributedModel(net), whole


def chain(*more: nn.Module) -> nn.Module:
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *copy.deepcopy(more)) for _ in range(6)
    ]
    return nn.Sequential(*layers)


class Loss(nn.Module):
    """With a parameter, for a rank may hold nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (x * self.weight).square().mean()


def batch(size: int = 8):
    return torch.randn(size, WIDTH), torch.randn(size, WIDTH)


def trained(model, x, y):
    return train(model, x, y)


@smp.step
def train(model, x, y):
    loss = functional.mse_loss(model(x), y)
    model.backward(loss)
    return loss


@smp.step
def evaluate(model, x):
    return model(x)


def train_whole(whole, x, y, count: int = MICROBATCHES) -> torch.Tensor:
    losses = []
    for a, b in zip(x.chunk(count), y.chunk(count), strict=True):
        loss = functional.mse_loss(whole(a), b)
        (loss / count).backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def agree(model, whole) -> None:
    """Gradients of what this rank holds."""
    wanted = dict(whole.named_parameters())
    held = dict(model.local_named_parameters())
    assert held
    for name, one in held.items():
        torch.testing.assert_close(one.grad, wanted[name].grad, rtol=1e-5, atol=1e-6, msg=name)


@contextmanager
def refused(words: str, kind: type[Exception] = ModelParallelError):
    try:
        yield
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing was refused with {words!r}")


def everyones(value):
    return smp.allgather(value, smp.WORLD)


# --- what a step gives


def outputs_are_the_same_on_all_ranks() -> None:
    model, whole = wrapped(chain())
    x, y = batch()
    trained(model, x, y)
    found = evaluate(model, x).concat()
    torch.testing.assert_close(found, whole(x))
    assert all(torch.equal(one, found) for one in everyones(found))


def returns_may_be_nested_and_numbers_are_lists() -> None:
    model, _ = wrapped(chain())

    @smp.step
    def step(model, x):
        out = model(x)
        model.backward(out.sum())
        return {"mean": out.mean(), "number": out.sum().item(), "rest": (out[:, 0], None)}

    for _ in range(2):  # one after the other, then as a pipeline
        found = step(model, torch.ones(8, WIDTH))
        assert isinstance(found["number"], list) and len(found["number"]) == MICROBATCHES
        assert len(set(found["number"])) == 1 and found["rest"][1] is None
        assert found["rest"][0].concat().shape == (8,)
        assert all(one == found["number"] for one in everyones(found["number"]))


def an_output_that_nobody_reads_is_not_sent() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = chain()

        def forward(self, x):
            out = self.body(x)
            return {"loss": out.square().mean(), "wide": out.repeat(1, 50_000)}

    model, _ = wrapped(Two())

    @smp.step
    def step(model, x):
        out = model(x)
        assert out["wide"].shape == (2, WIDTH * 50_000)  # its shape may be asked for
        model.backward(out["loss"])
        return out["loss"]

    sent = []
    sessions.current()
    for _ in range(2):
        step(model, torch.ones(8, WIDTH)).reduce_mean()
    broadcast = torch.distributed.broadcast

    def counted(tensor, *args, **kwargs):
        sent.append(tensor.numel())
        return broadcast(tensor, *args, **kwargs)

    torch.distributed.broadcast = counted
    try:
        step(model, torch.ones(8, WIDTH))
    finally:
        torch.distributed.broadcast = broadcast
    assert sum(sent) < 10_000, sent


def an_output_may_be_changed_in_place() -> None:
    model, whole = wrapped(nn.Sequential(chain(), nn.Linear(WIDTH, WIDTH)))

    @smp.step
    def directly(model, x):
        out = model(x)
        out /= 2
        model.backward(out.sum())
        return out

    for _ in range(3):
        found = directly(model, torch.ones(8, WIDTH)).stack()
        assert all(torch.equal(one, found) for one in everyones(found))
    torch.testing.assert_close(whole(torch.ones(2, WIDTH)) / 2, found[0])


def shapes_may_change_from_step_to_step() -> None:
    model, whole = wrapped(chain())
    for size in (8, 12, 4, 8):
        x, y = batch(size)
        found = trained(model, x, y).reduce_mean()
        torch.testing.assert_close(found, train_whole(whole, x, y))
    agree(model, whole)


def steps_add_up_their_gradients_also_of_tied_parameters() -> None:
    model, whole = wrapped(Tied(WIDTH, chain()))
    for _ in range(3):
        x, y = batch()
        trained(model, x, y)
        train_whole(whole, x, y)
    agree(model, whole)
    if smp.pp_rank() in (0, smp.pp_size() - 1):  # both ends hold it
        assert "come.weight" in dict(model.local_named_parameters())


def a_loss_of_two_calls_of_the_model_has_both_gradients() -> None:
    model, whole = wrapped(chain())

    @smp.step
    def step(model, x, y):
        loss = (model(x) - model(y)).square().mean()
        model.backward(loss)
        return loss

    for _ in range(2):
        x, y = batch()
        step(model, x, y)
        for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            ((whole(a) - whole(b)).square().mean() / MICROBATCHES).backward()
    agree(model, whole)


def a_step_function_that_does_not_call_the_model_works() -> None:
    model, _ = wrapped(chain())

    @smp.step
    def step(x):
        return x.sum()

    x, y = batch()
    trained(model, x, y)
    for _ in range(2):
        assert float(step(torch.ones(8)).reduce_sum()) == 8


def backward_takes_several_tensors_with_gradients() -> None:
    model, whole = wrapped(chain())

    @smp.step
    def step(model, x):
        out = model(x)
        model.backward([out, out.sum()], [torch.full_like(out, 2.0), None])

    for _ in range(2):
        x, _ = batch()
        step(model, x)
        for a in x.chunk(MICROBATCHES):
            (whole(a).sum() * 3 / MICROBATCHES).backward()
    agree(model, whole)


def backward_may_be_called_twice_in_a_microbatch() -> None:
    model, whole = wrapped(chain())

    @smp.step
    def step(model, x):
        out = model(x)
        model.backward(out.sum())
        model.backward(out.square().sum())

    for _ in range(2):
        x, _ = batch()
        step(model, x)
        for a in x.chunk(MICROBATCHES):
            out = whole(a)
            ((out.sum() + out.square().sum()) / MICROBATCHES).backward()
    agree(model, whole)


def a_step_that_begins_to_call_backward_does_it() -> None:
    model, whole = wrapped(chain())

    @smp.step
    def step(model, x, wants):
        out = model(x)
        if wants:
            model.backward(out.sum())

    x, _ = batch()
    step(model, x, False)
    assert all(one.grad is None for one in model.local_parameters())
    for wants in (False, True, True, False):
        step(model, x, wants)
        if wants:
            (whole(x).sum() / MICROBATCHES).backward()
    agree(model, whole)


def a_step_function_that_reads_no_output_runs_on_the_script_s_own_thread() -> None:
    model, _ = wrapped(nn.Sequential(chain(), Loss()))
    seen = []

    @smp.step
    def step(model, x):
        seen.append(threading.get_ident())
        loss = model(x)
        model.backward(loss)
        seen.append(threading.get_ident())
        return loss

    for _ in range(3):
        seen.clear()
        step(model, torch.randn(8, WIDTH)).reduce_mean()
    assert seen == [threading.get_ident()] * 2 * MICROBATCHES


def a_step_function_may_begin_to_read_an_output() -> None:
    """In the middle, where it did not before: microbatches get theirs in order, whether they return
    it or not, and modes that hold there do not reach the stages."""
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    read = []

    def looked_at(number, loss):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            read.append((number, loss.item(), (2 * loss).item()))

    @smp.step
    def returns(model, x, numbers, reads):
        loss = model(x)
        model.backward(loss)
        if reads:
            looked_at(int(numbers[0]), loss)
        return loss

    @smp.step
    def returns_nothing(model, x, numbers, reads):
        loss = model(x)
        model.backward(loss)
        if reads:
            looked_at(int(numbers[0]), loss)

    numbers = torch.arange(MICROBATCHES)
    for step in (returns, returns_nothing):
        for reads in (False, False, True, False, True):
            read.clear()
            x = torch.randn(8, WIDTH)
            step(model, x, numbers, reads)
            losses = [whole(one) for one in x.chunk(MICROBATCHES)]
            (sum(losses) / MICROBATCHES).backward()
            assert [number for number, _, _ in read] == numbers.tolist() * reads
            values = torch.tensor([value for _, value, _ in read])
            torch.testing.assert_close(
                values, torch.tensor([one.item() for one in losses if reads])
            )
    agree(model, whole)


def a_step_function_that_begins_to_return_an_output_stays_on_the_script_s_own_thread() -> None:
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    seen = []

    @smp.step
    def step(model, x, returns):
        seen.append(threading.get_ident())
        loss = model(x)
        model.backward(loss)
        return loss if returns else None

    for returns in (False, False, True, True):
        seen.clear()
        x = torch.randn(8, WIDTH)
        given = step(model, x, returns)
        if returns:
            wanted = torch.stack([whole(one) for one in x.chunk(MICROBATCHES)])
            torch.testing.assert_close(torch.stack(list(given)), wanted)
    assert seen == [threading.get_ident()] * MICROBATCHES


def what_surrounds_the_reading_of_an_output_does_not_reach_the_stages() -> None:
    """It may be read where nothing can be differentiated, for the first time in a later step."""
    model, whole = wrapped(nn.Sequential(chain(), Loss()))

    @smp.step
    def step(model, x, reads):
        loss = model(x)
        model.backward(loss)
        if reads:
            with torch.inference_mode():
                assert loss.item() > 0

    for reads in (False, False, True):
        x = torch.randn(8, WIDTH)
        step(model, x, reads)
        train_loss(whole, x)
    agree(model, whole)


def train_loss(whole, x) -> None:
    losses = [whole(one) for one in x.chunk(MICROBATCHES)]
    (sum(losses) / MICROBATCHES).backward()


def hooks_around_the_call_of_the_model_do_not_reach_the_stages() -> None:
    """In no step: those of a checkpoint would call the model once more amid a backward pass."""
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    saved = []

    def save(tensor):
        saved.append(tensor)
        return tensor

    @smp.step
    def step(model, x):
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            loss = model(x)
            assert not saved
            functional.tanh(torch.ones(1, requires_grad=True))
            assert len(saved) == 1  # they are there again
        saved.clear()
        model.backward(loss)

    @smp.step
    def checkpointed(model, x):
        model.backward(checkpoint(model, x, use_reentrant=False))

    for one in (step, checkpointed):
        for _ in range(3):
            x = torch.randn(8, WIDTH)
            one(model, x)
            train_loss(whole, x)
    agree(model, whole)


def a_step_function_may_read_the_output_of_a_microbatch_before() -> None:
    model, whole = wrapped(nn.Sequential(chain(), Loss()))
    losses, read = [], []

    @smp.step
    def step(model, x):
        loss = model(x)
        model.backward(loss)
        losses.append(loss)
        if len(losses) > 1:
            read.append(losses[-2].item())
        return loss

    for _ in range(4):
        losses.clear(), read.clear()
        x = torch.randn(8, WIDTH)
        step(model, x)
        wanted = [whole(one).item() for one in x.chunk(MICROBATCHES)]
        torch.testing.assert_close(torch.tensor(read), torch.tensor(wanted[:-1]))


def nothing_of_a_step_is_kept_after_it() -> None:
    """Neither arguments nor outputs, also by outputs that the script keeps."""
    model, _ = wrapped(nn.Sequential(chain(), Loss()))
    seen, kept = [], []

    @smp.step
    def step(model, x, keeps):
        loss = model(x)
        model.backward(loss)
        seen.append(weakref.ref(x))
        if not keeps:
            seen.append(weakref.ref(loss))
        elif smp.pp_rank() < smp.pp_size() - 1:  # there it keeps what it was made of
            kept.append(loss)
        return loss if keeps else None

    for keeps in (False, False, True, True):
        seen.clear()
        step(model, torch.randn(8, WIDTH), keeps)
        gc.collect()
        assert not any(one() is not None for one in seen)
    assert all(loss.item() > 0 for loss in kept)


class Scale(nn.Module):
    """For inputs of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.weight


def microbatches_of_different_sizes_keep_their_order() -> None:
    model, _ = wrapped(nn.Sequential(*[Scale() for _ in range(8)], Loss()))
    order = []

    @smp.step(non_split_inputs=["xs"])
    def step(model, xs, numbers):
        number = int(numbers[0])
        loss = model(xs[number])
        model.backward(loss)
        order.append(number)

    numbers = torch.arange(MICROBATCHES)
    small, large = 8, 1 << 17  # the latter is received ahead
    for sizes in ((small,) * 4, (large, small, large, small), (small, large, small, large)):
        order.clear()
        step(model, [torch.randn(size) for size in sizes], numbers)
        assert order == numbers.tolist()


def evaluation_may_come_before_training() -> None:
    model, whole = wrapped(chain())
    x, y = batch()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(evaluate(model, x).concat(), whole(x))
    model.train()
    assert not model.partitioned
    for _ in range(2):
        trained(model, x, y)
        train_whole(whole, x, y)
    agree(model, whole)
    assert model.partitioned
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(evaluate(model, x).concat(), whole(x))


def what_a_step_function_draws_is_the_same_on_all_ranks() -> None:
    model, whole = wrapped(chain())

    @smp.step
    def step(model, x):
        noise = torch.randn_like(x)
        out = model(x + noise)
        target = noise + 0.1 * torch.randn_like(noise)
        model.backward(functional.mse_loss(out, target))
        return noise, target

    x, _ = batch()
    seen = []
    for _ in range(3):
        noise, target = step(model, x)
        seen.append(noise.concat())
        assert all(torch.equal(one, target.concat()) for one in everyones(target.concat()))
        train_whole(whole, x + noise.concat(), target.concat())
    agree(model, whole)
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def a_script_draws_between_steps_what_it_would_draw_without_them() -> None:
    model, _ = wrapped(chain(nn.Dropout(0.5)))
    torch.manual_seed(9)
    drawn = []
    for _ in range(3):
        x, y = batch()
        drawn.append(x)
        trained(model, x, y)
    torch.manual_seed(9)
    assert all(torch.equal(one, batch()[0]) for one in drawn)


def values_of_other_ranks_do_not_count() -> None:
    model, whole = wrapped(chain())
    for _ in range(2):
        x, y = batch()
        given = (x, y) if is_first() else (torch.zeros(8, 0), torch.full((8, 1), -1, dtype=int))
        found = trained(model, *given)
        torch.testing.assert_close(found.reduce_mean(), train_whole(whole, x, y))
    agree(model, whole)


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    made: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.made, self.more = 2 * self.y, -self.y


def a_batch_in_a_dataclass_is_cut_and_that_of_the_first_rank() -> None:
    model, whole = wrapped(chain())

    @smp.step
    def step(model, given):
        loss = functional.mse_loss(model(given.x), given.made + given.more)
        model.backward(loss)
        return loss

    for _ in range(2):
        x, y = batch()
        own = Batch(x, y) if is_first() else Batch(x + 1, y + 1)
        torch.testing.assert_close(step(model, own).reduce_mean(), train_whole(whole, x, y))
    agree(model, whole)


class InDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = chain()

    def forward(self, x):
        return Batch(x, self.blocks(x))


def all_attributes_of_a_dataclass_that_the_model_returns_are_those_of_its_microbatch() -> None:
    model, whole = wrapped(InDataclass())

    @smp.step
    def step(model, x):
        out = model(x)
        model.backward(out.y.sum())
        return out.made, out.more

    for _ in range(2):
        x, _ = batch()
        made, more = step(model, x)
        torch.testing.assert_close(made.concat(), whole(x).made.detach())
        torch.testing.assert_close(more.concat(), whole(x).more.detach())


def numbers_and_texts_are_those_of_the_first_rank() -> None:
    model, _ = wrapped(chain())

    @smp.step
    def step(model, x, factor, name):
        out = model(x) * factor
        model.backward(out.sum())
        return out.sum(), [name]

    for _ in range(2):
        x, _ = batch()
        total, names = step(model, x, 2.0 if is_first() else 3.0, "a" if is_first() else "b")
        assert names == [["a"] * MICROBATCHES]
        assert len(set(everyones(float(total.reduce_sum())))) == 1


def what_backward_needs_may_leave_the_device_meanwhile() -> None:
    model, whole = wrapped(chain(nn.Linear(WIDTH, WIDTH)))
    session = sessions.current()
    offload = session.offload = Offload(session.mesh.device, horizon=2, least_bytes=1)
    for _ in range(3):
        x, y = batch()
        assert torch.allclose(train(model, x, y).reduce_mean(), train_whole(whole, x, y))
    agree(model, whole)
    assert offload.offloaded_bytes or smp.pp_rank()


def batch_norm_and_its_buffers_are_those_of_one_process() -> None:
    model, whole = wrapped(chain(nn.BatchNorm1d(WIDTH)))
    for _ in range(2):
        x, y = batch()
        trained(model, x, y)
        train_whole(whole, x, y)
    agree(model, whole)
    found = model.state_dict()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def a_buffer_of_several_names_is_that_of_one_process() -> None:
    shared = nn.BatchNorm1d(WIDTH)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), shared) for _ in range(4)]
    model, whole = wrapped(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)], *layers))
    x, y = batch()
    trained(model, x, y)
    train_whole(whole, x, y)
    found = model.state_dict()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def autocast_in_the_step_function_holds_in_the_stages() -> None:
    model, whole = wrapped(chain())

    device = sessions.current().mesh.device.type

    @smp.step
    def step(model, x, y):
        with torch.autocast(device, torch.bfloat16):
            out = model(x)
            assert out.dtype is torch.bfloat16
        loss = functional.mse_loss(out.float(), y)
        model.backward(loss)
        return loss

    for _ in range(2):
        x, y = batch()
        found = step(model, x, y).reduce_mean()
        with torch.autocast(device, torch.bfloat16):
            wanted = torch.cat([whole(one) for one in x.chunk(MICROBATCHES)])
        torch.testing.assert_close(found, functional.mse_loss(wanted.float(), y))


def the_default_device_holds_in_the_step_function() -> None:
    model, whole = wrapped(chain())
    x, y = batch()
    found = set()

    @smp.step
    def step(model, x, y):
        found.add(torch.zeros(1).device.type)
        loss = functional.mse_loss(model(x), y)
        model.backward(loss)
        return loss

    for _ in range(2):
        with torch.device("meta"):
            given = step(model, x, y).reduce_mean()
        assert torch.allclose(given, train_whole(whole, x, y))
    assert found == {"meta"}
    agree(model, whole)


class Saving(nn.Module):
    """Computes its layers again in backward, where it `saves`."""

    def __init__(self, drop: float, saves: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.drop, self.saves = nn.Dropout(drop), saves

    def forward(self, x):
        for layer in self.layers:
            run = lambda x, layer=layer: self.drop(torch.tanh(layer(x)))  # noqa: E731
            x = checkpoint(run, x, use_reentrant=False) if self.saves else run(x)
        return x


def checkpointed_modules_have_the_gradients_of_the_whole_model() -> None:
    model, whole = wrapped(Saving(0.0, True))
    for _ in range(2):
        x, y = batch()
        trained(model, x, y)
        train_whole(whole, x, y)
    agree(model, whole)


def checkpointed_modules_drop_what_they_drop_without_checkpoints() -> None:
    found = []
    for saves in (True, False):
        begin_with(skip_tracing=True)
        torch.manual_seed(5)
        model, _ = wrapped(Saving(0.3, saves))
        for _ in range(2):
            trained(model, *batch())
        found.append({name: one.grad for name, one in model.local_named_parameters()})
    torch.testing.assert_close(*found)


def a_cut_may_come_within_modules_that_are_checkpointed_together() -> None:
    for strategy in ("contiguous", "group_2", "group_4"):
        over()
        begin()
        net = chain(nn.Dropout(0.0))
        model, whole = wrapped(net)
        smp.set_activation_checkpointing(net, strategy=strategy)
        for _ in range(2):
            x, y = batch()
            trained(model, x, y)
            train_whole(whole, x, y)
        agree(model, whole)
        linear = next(one for one in model.local_modules() if isinstance(one, nn.Linear))
        calls = []
        linear.register_forward_pre_hook(lambda *_: calls.append(1))  # noqa: B023
        trained(model, *batch())
        assert len(calls) == 2 * MICROBATCHES, (strategy, len(calls))  # and once more in backward


# --- what is refused


def a_batch_that_does_not_divide_is_refused_on_all_ranks_and_the_next_one_is_not() -> None:
    model, whole = wrapped(chain())
    for size in (8, 10, 8):
        x, y = batch(size)
        if size == 10:
            with refused("has 10 entries on axis 0, which 4 microbatches do not divide"):
                trained(model, x, y)
        else:
            trained(model, x, y)
            train_whole(whole, x, y)
    agree(model, whole)


def the_model_outside_a_step_function_is_refused() -> None:
    model, _ = wrapped(chain())
    with refused("was called outside a step function", StepError):
        model(torch.ones(2, WIDTH))


def a_model_with_too_few_units_is_refused_on_all_ranks() -> None:
    model, _ = wrapped(nn.Linear(WIDTH, WIDTH))
    with refused("calls no modules that could be units"):
        trained(model, *batch())


def a_split_that_is_not_proved_is_refused_on_all_ranks() -> None:
    class Numbered(nn.Linear):
        number = 0.0

        def forward(self, x):
            self.number = float(
                x.detach().cpu().numpy().sum()
            )  # no operator: nothing can follow it
            return super().forward(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Numbered(WIDTH, WIDTH)
            self.rest = chain()

        def forward(self, x):
            return self.rest(self.first(x)) * self.first.number

    model, _ = wrapped(Model())
    with refused("output 0 differs between stages and whole model"):
        trained(model, *batch())
    assert not model.partitioned


def models_that_differ_are_refused_on_all_ranks() -> None:
    width = WIDTH if is_first() else WIDTH + 1
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)], nn.Linear(WIDTH, width))
    model, _ = wrapped(net)
    with refused("contradicts the model"):
        train(model, torch.ones(8, WIDTH), torch.ones(8, 1))


# --- parameters, optimizers, checkpoints


def each_parameter_is_held_once_and_ghosts_are_small() -> None:
    model, whole = wrapped(chain())
    trained(model, *batch())
    mine = {name: one.untyped_storage().nbytes() for name, one in model.module.named_parameters()}
    held = {name for name, _ in model.local_named_parameters()}
    assert all(size <= 16 for name, size in mine.items() if name not in held)
    others = [one for name, one in model.module.named_parameters() if name not in held]
    assert others and all(one.isnan().all() for one in others)  # plausible values would be used
    total = sum(everyones(sum(mine[name] for name in held)))
    assert total == sum(one.untyped_storage().nbytes() for one in whole.parameters())
    names = [name for rank in everyones(sorted(held)) for name in rank]
    assert sorted(names) == sorted(dict(whole.named_parameters()))


def an_optimizer_that_was_made_before_the_model_trains() -> None:
    net = chain()
    whole = copy.deepcopy(net)
    inner = torch.optim.AdamW(net.parameters(), lr=0.1)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(inner)
    other = torch.optim.AdamW(whole.parameters(), lr=0.1)
    for _ in range(3):
        x, y = batch()
        optimizer.zero_grad()
        other.zero_grad()
        trained(model, x, y)
        train_whole(whole, x, y)
        assert abs(float(model.clip_grad_norm_(0.05)) - float(
            torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.05))) < 1e-5  # fmt: skip
        optimizer.step()
        other.step()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    found, wanted = optimizer.state_dict(), other.state_dict()
    assert found["state"].keys() == wanted["state"].keys()
    for number, state in wanted["state"].items():
        torch.testing.assert_close(found["state"][number]["exp_avg"], state["exp_avg"])
    assert len(optimizer.local_state_dict()["state"]) < len(wanted["state"])


def norms_of_all_kinds_are_those_of_the_whole_model() -> None:
    model, whole = wrapped(chain())
    x, y = batch()
    trained(model, x, y)
    train_whole(whole, x, y)
    for kind in (1.0, 2.0, float("inf")):
        found = model.clip_grad_norm_(1e9, kind)
        wanted = torch.nn.utils.clip_grad_norm_(whole.parameters(), 1e9, kind)
        torch.testing.assert_close(found, wanted)


def states_are_loaded_whole_and_in_part() -> None:
    model, whole = wrapped(chain())
    trained(model, *batch())
    other = chain()
    model.load_state_dict(other.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    part = {
        name: torch.zeros_like(one) if isinstance(one, torch.Tensor) else one
        for name, one in model.local_state_dict().items()
    }
    assert part["_smp_is_partial"] is True and len(part) < len(other.state_dict()) + 1
    model.load_state_dict(part)
    assert all(not value.any() for value in model.state_dict().values())
    with refused("missing keys ['0.0.weight']", RuntimeError):
        model.load_state_dict({n: v for n, v in other.state_dict().items() if n != "0.0.weight"})
    with refused("unexpected keys ['more']", RuntimeError):
        model.load_state_dict({**other.state_dict(), "more": torch.ones(1)})
    whole.load_state_dict(model.state_dict())


def checkpoints_of_both_kinds_bring_model_and_optimizer_back() -> None:
    folder = everyones(tempfile.mkdtemp() if is_first() else "")[0]
    net = chain()
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(net.parameters(), lr=0.1))
    x, y = batch()
    for _ in range(2):
        trained(model, x, y)
        optimizer.step()
    for partial in (True, False):
        smp.save_checkpoint(folder, "here", partial, model, optimizer, user_content={"at": 2})
        before, state = map(copy.deepcopy, (model.state_dict(), optimizer.state_dict()))
        trained(model, x, y)
        optimizer.step()
        assert smp.resume_from_checkpoint(folder, "here", partial) == {"at": 2}
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        for number, found in optimizer.state_dict()["state"].items():
            assert torch.equal(found["exp_avg"], state["state"][number]["exp_avg"])
    if is_first():
        whole = torch.load(Path(folder, "here"), weights_only=True)
        chain().load_state_dict(whole)


def a_partial_checkpoint_is_loaded_before_the_model_is_cut() -> None:
    """Model and optimizer go on as if the job had not ended."""
    folder = everyones(tempfile.mkdtemp() if is_first() else "")[0]
    first, second = batch(), batch()
    found = []
    for resumes in (False, True):
        if resumes:
            begin_with()
        net = chain()
        model = smp.DistributedModel(net)
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(net.parameters(), lr=0.1))
        if resumes:
            smp.resume_from_checkpoint(folder)
            assert not model.partitioned
        else:
            trained(model, *first)
            optimizer.step()
            smp.save_checkpoint(folder, "first", True, model, optimizer)
        optimizer.zero_grad()
        trained(model, *second)
        optimizer.step()
        found.append(copy.deepcopy((dict(model.state_dict()), optimizer.state_dict()["state"])))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def begin_with(**parameters: object) -> None:
    """A session with more parameters, once no rank is at work on the one before."""
    over()
    degree = int(os.environ["WORLD_SIZE"])
    smp.init({"pipeline_parallel_degree": degree, **parameters})


def the_partitions_of_the_script_are_kept() -> None:
    begin_with(auto_partition=False)
    net = chain()
    for at, layer in enumerate(net):  # the last rank has all but one layer of each other one
        smp.set_partition(layer, min(at, smp.pp_size() - 1))
    model, whole = wrapped(net)
    for _ in range(2):
        x, y = batch()
        trained(model, x, y)
        train_whole(whole, x, y)
    agree(model, whole)
    mine = {name.split(".")[0] for name, _ in model.local_named_parameters()}
    assert mine == {str(at) for at in range(6) if min(at, smp.pp_size() - 1) == smp.pp_rank()}


def partitions_that_come_back_to_a_rank_train() -> None:
    begin_with(auto_partition=False)
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(2 * smp.pp_size())])
    for at, layer in enumerate(net):
        smp.set_partition(layer, at % smp.pp_size())
    model, whole = wrapped(net)
    for _ in range(3):
        x, y = batch()
        found = trained(model, x, y).reduce_mean()
        torch.testing.assert_close(found, train_whole(whole, x, y))
    agree(model, whole)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(evaluate(model, x).concat(), whole(x))


def two_stages_on_each_rank_come_by_in_turns() -> None:
    begin_with(pipeline="Interleaved1F1B")
    model, whole = wrapped(chain())
    for _ in range(3):
        x, y = batch()
        found = trained(model, x, y).reduce_mean()
        torch.testing.assert_close(found, train_whole(whole, x, y))
    agree(model, whole)
    assert model.stages.rank_of == (*range(smp.pp_size()),) * 2
    assert model.stages.schedule(MICROBATCHES).name == "Interleaved1F1B"


def partitions_in_no_order_are_refused() -> None:
    begin_with(auto_partition=False)
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(smp.pp_size() + 1)])
    for at, layer in enumerate(net):
        smp.set_partition(layer, [1, *range(smp.pp_size())][at])
    model, _ = wrapped(net)
    with refused("the calls return to a partition"):
        trained(model, *batch())


def a_plan_is_written_and_read_again() -> None:
    folder = everyones(tempfile.mkdtemp() if is_first() else "")[0]
    file = str(Path(folder, "plan.json"))
    begin_with(partition_file=file)
    model, _ = wrapped(chain())
    trained(model, *batch())
    first = [name for name, _ in model.local_named_parameters()]
    smp.barrier()
    begin_with(partition_file=file, load_partition=True)
    model, whole = wrapped(chain())
    x, y = batch()
    trained(model, x, y)
    train_whole(whole, x, y)
    agree(model, whole)
    assert [name for name, _ in model.local_named_parameters()] == first
    begin_with(partition_file=file, load_partition=True)
    model, _ = wrapped(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)]))
    with refused("the plan contradicts the model"):
        trained(model, *batch())


def the_plan_is_left_in_the_folder_of_the_run() -> None:
    folder = everyones(tempfile.mkdtemp() if is_first() else "")[0]
    os.environ["SM_OUTPUT_DATA_DIR"] = folder
    try:
        model, _ = wrapped(chain())
        trained(model, *batch())
    finally:
        del os.environ["SM_OUTPUT_DATA_DIR"]
    assert sorted(os.listdir(folder)) == ["model-plan.html", "model-plan.json"]


def hooks_run_once_when_the_model_is_cut() -> None:
    model, _ = wrapped(chain())
    seen = []
    model.register_post_partition_hook(lambda model, optimizer: seen.append(model.partitioned))
    for _ in range(2):
        trained(model, *batch())
    assert seen == [True]


CHECKS = (
    outputs_are_the_same_on_all_ranks,
    returns_may_be_nested_and_numbers_are_lists,
    an_output_that_nobody_reads_is_not_sent,
    an_output_may_be_changed_in_place,
    shapes_may_change_from_step_to_step,
    steps_add_up_their_gradients_also_of_tied_parameters,
    a_loss_of_two_calls_of_the_model_has_both_gradients,
    a_step_function_that_does_not_call_the_model_works,
    backward_takes_several_tensors_with_gradients,
    backward_may_be_called_twice_in_a_microbatch,
    a_step_that_begins_to_call_backward_does_it,
    a_step_function_that_reads_no_output_runs_on_the_script_s_own_thread,
    a_step_function_may_begin_to_read_an_output,
    a_step_function_that_begins_to_return_an_output_stays_on_the_script_s_own_thread,
    what_surrounds_the_reading_of_an_output_does_not_reach_the_stages,
    hooks_around_the_call_of_the_model_do_not_reach_the_stages,
    a_step_function_may_read_the_output_of_a_microbatch_before,
    nothing_of_a_step_is_kept_after_it,
    microbatches_of_different_sizes_keep_their_order,
    evaluation_may_come_before_training,
    what_a_step_function_draws_is_the_same_on_all_ranks,
    a_script_draws_between_steps_what_it_would_draw_without_them,
    values_of_other_ranks_do_not_count,
    a_batch_in_a_dataclass_is_cut_and_that_of_the_first_rank,
    all_attributes_of_a_dataclass_that_the_model_returns_are_those_of_its_microbatch,
    numbers_and_texts_are_those_of_the_first_rank,
    what_backward_needs_may_leave_the_device_meanwhile,
    batch_norm_and_its_buffers_are_those_of_one_process,
    a_buffer_of_several_names_is_that_of_one_process,
    autocast_in_the_step_function_holds_in_the_stages,
    the_default_device_holds_in_the_step_function,
    checkpointed_modules_have_the_gradients_of_the_whole_model,
    checkpointed_modules_drop_what_they_drop_without_checkpoints,
    a_cut_may_come_within_modules_that_are_checkpointed_together,
    a_batch_that_does_not_divide_is_refused_on_all_ranks_and_the_next_one_is_not,
    the_model_outside_a_step_function_is_refused,
    a_model_with_too_few_units_is_refused_on_all_ranks,
    a_split_that_is_not_proved_is_refused_on_all_ranks,
    models_that_differ_are_refused_on_all_ranks,
    each_parameter_is_held_once_and_ghosts_are_small,
    an_optimizer_that_was_made_before_the_model_trains,
    norms_of_all_kinds_are_those_of_the_whole_model,
    states_are_loaded_whole_and_in_part,
    checkpoints_of_both_kinds_bring_model_and_optimizer_back,
    a_partial_checkpoint_is_loaded_before_the_model_is_cut,
    the_partitions_of_the_script_are_kept,
    partitions_that_come_back_to_a_rank_train,
    two_stages_on_each_rank_come_by_in_turns,
    partitions_in_no_order_are_refused,
    a_plan_is_written_and_read_again,
    the_plan_is_left_in_the_folder_of_the_run,
    hooks_run_once_when_the_model_is_cut,
)

if __name__ == "__main__":
    main()
