"""DistributedDataParallel with all its flags on our backend against gloo; run by test_ddp.py."""

from __future__ import annotations

import copy
import functools
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster_collectives.runtime.types import Verb
from muster_collectives.torch import stats
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
STEPS = 3


def in_both_ways(check: Callable[[World, Any], None]) -> Callable[[World], None]:
    """The check on a group whose asynchronous calls are run by who waits, and on one that has a
    thread for them."""

    @functools.wraps(check)
    def both(world: World) -> None:
        for way in ("lazy", "lane"):
            os.environ["COLLECTIVES_ASYNC"] = way
            group = dist.new_group()
            torch.manual_seed(1234)
            check(world, group)
            assert not stats(group).fallback
            dist.destroy_process_group(group)

    return both


class Net(nn.Module):
    """Two layers, buffers, and a branch that not every input uses."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(12, 64)
        self.norm = nn.BatchNorm1d(64)
        self.branch = nn.Linear(64, 64)
        self.last = nn.Linear(64, 3)
        self.unused = unused

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(given)))
        if not self.unused:
            hidden = hidden + self.branch(hidden)
        return self.last(hidden)  # type: ignore[no-any-return]


def batch(world: World, step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    seeded = torch.Generator().manual_seed(1000 * step + world.rank)
    return torch.randn(rows, 12, generator=seeded), torch.randn(rows, 3, generator=seeded)


def train(
    world: World, model: nn.Module, group: Any, steps: int = STEPS, **flags: Any
) -> tuple[nn.Module, list[float]]:
    """The trained model and the losses of this rank."""
    ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group, **flags)
    return ddp.module, trained(world, ddp, steps)


def trained(world: World, ddp: nn.Module, steps: int = STEPS) -> list[float]:
    """The losses of this rank."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        given, wanted = batch(world, step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(given), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def close(ours: nn.Module, theirs: nn.Module, what: object = "", rtol: float = 1e-5) -> None:
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=rtol, atol=1e-6, msg=lambda text, name=name: f"{what} {name}: {text}"
        )


def agreed(model: nn.Module, group: Any) -> None:
    """All ranks have the same bits."""
    for parameter in model.parameters():
        other = parameter.detach().clone()
        dist.broadcast(other, 0, group=group)
        assert torch.equal(other, parameter)


@in_both_ways
def every_flag_trains_as_with_gloo(world: World, mine: Any) -> None:
    # `mixed_precision` cannot be tried: torch 2.13 itself refuses it on CPU, with gloo as well, in
    # the first forward pass ("cpu backend doesn't support events")
    before = stats(mine).calls(Verb.ALL_REDUCE)
    for flags in (
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.01},
        {"broadcast_buffers": False},
        {"find_unused_parameters": True},
        {"static_graph": True, "find_unused_parameters": True},
        {"init_sync": False},
        {"bucket_cap_mb": 0.01, "find_unused_parameters": True, "gradient_as_bucket_view": True},
    ):
        model = Net(unused=bool(flags.get("find_unused_parameters")))
        ours, losses = train(world, model, mine, **flags)  # type: ignore[arg-type]
        theirs, expected = train(world, model, world.gloo, **flags)  # type: ignore[arg-type]
        close(ours, theirs, flags)
        assert losses == expected or torch.allclose(
            torch.tensor(losses), torch.tensor(expected), rtol=1e-5
        )
        agreed(ours, world.gloo)
    assert stats(mine).calls(Verb.ALL_REDUCE) > before


@in_both_ways
def gradients_that_are_delayed_to_one_sum_train_as_without(world: World, mine: Any) -> None:
    """DDP waits for the buckets after that sum, never for the sum itself. Ours come in order, gloo
    has two threads and is at times not done with it: the reference is gloo without the delay."""
    torch.manual_seed(11)
    model = Net()
    theirs, _ = train(world, model, world.gloo)
    for names in (("last",), ("branch", "norm", "last")):
        ours = copy.deepcopy(model)
        late = [each for each in ours.named_parameters() if each[0].startswith(names)]
        before = stats(mine).calls(Verb.ALL_REDUCE)
        ddp = DistributedDataParallel(
            ours, process_group=mine, delay_all_reduce_named_params=late,
            # the last to get its gradient: all that is delayed has been gathered by then
            param_to_hook_all_reduce=ours.first.weight,
        )  # fmt: skip
        trained(world, ddp)
        # each step one of what was delayed, and one of the bucket at least
        assert stats(mine).calls(Verb.ALL_REDUCE) - before >= 2 * STEPS
        close(ours, theirs, names)
        agreed(ours, world.gloo)


@in_both_ways
def gradients_are_gathered_over_steps_without_a_word(world: World, mine: Any) -> None:
    found = []
    for group in (mine, world.gloo):
        torch.manual_seed(5)
        ddp = DistributedDataParallel(Net(), process_group=group, broadcast_buffers=False)
        calls = stats(mine).calls(Verb.ALL_REDUCE)
        for step in range(4):
            given, wanted = batch(world, step)
            with ddp.no_sync() if step < 3 else nullcontext():
                nn.functional.mse_loss(ddp(given), wanted).backward()
            if step < 3:
                assert stats(mine).calls(Verb.ALL_REDUCE) == calls
        found.append([parameter.grad.clone() for parameter in ddp.parameters()])  # type: ignore[union-attr]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@in_both_ways
def ranks_with_more_data_may_go_on(world: World, mine: Any) -> None:
    model = nn.Linear(12, 3)
    sums = []
    for group in (mine, world.gloo):
        ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join():
            for step in range(2 + world.rank):
                given, wanted = batch(world, step)
                optimizer.zero_grad()
                nn.functional.mse_loss(ddp(given), wanted).backward()
                optimizer.step()
        sums.append(ddp.module)
    close(sums[0], sums[1])


@in_both_ways
def python_hooks_get_their_futures(world: World, mine: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # torch looks at the annotations themselves, not at their names
    def doubled(state, bucket):  # type: ignore[no-untyped-def]
        future = dist.all_reduce(bucket.buffer(), group=mine, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / world.size)

    hooks: tuple[tuple[Callable[[Any], Any], Any], ...] = (
        (lambda group: None, doubled),
        (lambda group: group, default_hooks.allreduce_hook),
        (lambda group: group, default_hooks.fp16_compress_hook),
        (
            lambda group: powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=2, start_powerSGD_iter=2
            ),
            powerSGD_hook.powerSGD_hook,
        ),
    )
    for state, hook in hooks:
        found = []
        for group in (mine, world.gloo):
            torch.manual_seed(3)
            # PowerSGD begins sums in callbacks: with threads, as gloo has, in no fixed order among
            # several buckets
            bucket_mb = 25 if hook is powerSGD_hook.powerSGD_hook else 0.01
            ddp = DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=bucket_mb)
            if hook is doubled and group is world.gloo:
                ddp.register_comm_hook(world.gloo, default_hooks.allreduce_hook)
            else:
                ddp.register_comm_hook(state(group), hook)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            for step in range(4):
                given, wanted = batch(world, step)
                optimizer.zero_grad()
                nn.functional.mse_loss(ddp(given), wanted).backward()
                optimizer.step()
            found.append(ddp.module)
        close(found[0], found[1], hook.__name__, rtol=1e-3)


@in_both_ways
def bfloat16_autocast_loses_little(world: World, mine: Any) -> None:
    torch.manual_seed(7)
    model = Net()
    _, exact = train(world, model, mine, steps=8)
    ddp = DistributedDataParallel(copy.deepcopy(model), process_group=mine)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(8):
        given, wanted = batch(world, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(ddp(given).float(), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # bfloat16 has 8 bits: the stated bound is 5 % of the loss of float32
    for a, b in zip(losses, exact, strict=True):
        assert abs(a - b) <= 0.05 * abs(b), (losses, exact)
    agreed(ddp.module, world.gloo)


@in_both_ways
def half_gradients_are_summed_as_halves_and_overflow_is_seen_by_all(
    world: World, mine: Any
) -> None:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3))
    exact = copy.deepcopy(model)
    ddp = DistributedDataParallel(copy.deepcopy(model).half(), process_group=mine)
    plain = DistributedDataParallel(exact, process_group=world.gloo)
    # a scaler wants float32 masters; the gradients that travel are halves
    masters = [parameter.detach().float().requires_grad_() for parameter in ddp.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.05)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    losses, expected = [], []
    for step in range(6):
        given, wanted = batch(world, step)
        ddp.zero_grad()
        loss = nn.functional.mse_loss(ddp(given.half()).float(), wanted)
        scaler.scale(loss).backward()
        overflows = step == 3
        if overflows and world.rank == world.size - 1:
            next(ddp.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
        if overflows:  # as if that rank's own gradient had overflown before the sum
            for parameter in ddp.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=mine)
        for parameter, master in zip(ddp.parameters(), masters, strict=True):
            assert parameter.grad is not None
            assert parameter.grad.dtype is torch.float16
            master.grad = parameter.grad.float()
        before = [master.detach().clone() for master in masters]
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if overflows:
            assert all(torch.equal(a, b) for a, b in zip(before, masters, strict=True))
            assert scaler.get_scale() == scale / 2
            continue
        with torch.no_grad():
            for parameter, master in zip(ddp.parameters(), masters, strict=True):
                parameter.copy_(master)
        reference.zero_grad()
        other = nn.functional.mse_loss(plain(given), wanted)
        other.backward()
        reference.step()
        losses.append(loss.item())
        expected.append(other.item())
    # float16 has 11 bits: the stated bound is 1 % of the loss of float32
    for a, b in zip(losses, expected, strict=True):
        assert abs(a - b) <= 0.01 * abs(b), (losses, expected)
    agreed(ddp.module, world.gloo)


@in_both_ways
def an_overflow_on_one_rank_skips_the_step_of_all_and_the_next_goes_on(
    world: World, mine: Any
) -> None:
    """By DDP's own reduction: the gradient is infinite on one rank before it is summed."""
    last = world.size - 1
    for flags in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005}):
        torch.manual_seed(9)
        model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3)).half()
        ddp = DistributedDataParallel(model, process_group=mine, **flags)  # type: ignore[arg-type]
        masters = [each.detach().float().requires_grad_() for each in ddp.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        for step in range(5):
            given, wanted = batch(world, step)
            ddp.zero_grad()
            loss = nn.functional.mse_loss(ddp(given.half()).float(), wanted)
            overflows = step in (1, 3)
            if overflows and world.rank == last:
                loss = loss * 1e30  # float32 holds it, the gradients in float16 do not
            scaler.scale(loss).backward()
            for parameter, master in zip(ddp.parameters(), masters, strict=True):
                assert parameter.grad is not None
                assert bool(parameter.grad.isfinite().all()) != overflows, (step, world.rank)
                master.grad = parameter.grad.float()
            before = [master.detach().clone() for master in masters]
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            for old, master in zip(before, masters, strict=True):
                assert torch.equal(old, master) == overflows, step
            assert scaler.get_scale() == (scale / 2 if overflows else scale)
            with torch.no_grad():
                for parameter, master in zip(ddp.parameters(), masters, strict=True):
                    parameter.copy_(master)
            agreed(ddp.module, world.gloo)
        scales: list[Any] = [None] * world.size
        dist.all_gather_object(scales, scaler.get_scale(), group=mine)
        assert scales == [256.0] * world.size, scales


CHECKS = (
    every_flag_trains_as_with_gloo,
    gradients_that_are_delayed_to_one_sum_train_as_without,
    gradients_are_gathered_over_steps_without_a_word,
    ranks_with_more_data_may_go_on,
    python_hooks_get_their_futures,
    bfloat16_autocast_loses_little,
    half_gradients_are_summed_as_halves_and_overflow_is_seen_by_all,
    an_overflow_on_one_rank_skips_the_step_of_all_and_the_next_goes_on,
)

if __name__ == "__main__":
    main(CHECKS)
