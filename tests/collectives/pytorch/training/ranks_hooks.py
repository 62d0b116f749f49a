"""Checks of DDP's communication hooks, for any backend; ranks_registered.py runs them."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster_collectives.torch.cuda.streams import HostWork
from muster_collectives.torch.hooks import (
    Int8State,
    TopKState,
    WarmUp,
    bf16_hook,
    fp16_hook,
    int8_hook,
    top_k_hook,
)
from muster_collectives.torch.hooks.average import timeout_of
from muster_collectives.torch.hooks.feedback import ErrorFeedback
from muster_collectives.torch.hooks.int8 import Order
from tests.collectives.support.torch_ranks import World

warnings.filterwarnings("ignore")
BUCKET_MB = 0.05  # several buckets, which DDP cuts anew after its first step
Attach = Callable[[DistributedDataParallel], Any]


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 90), nn.Linear(90, 3))


def wrapped(attach: Attach | None, model: nn.Module | None = None) -> DistributedDataParallel:
    """A model of the same values on all ranks, with a hook."""
    ddp = DistributedDataParallel(
        model or network(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )
    if attach is not None:
        attach(ddp)
    return ddp


def step(world: World, ddp: DistributedDataParallel, number: int = 0) -> list[Tensor]:
    """The gradients after one backward pass over data of this rank's."""
    seeded = torch.Generator().manual_seed(1000 * number + world.rank)
    data = torch.randn(16, 64, generator=seeded)
    ddp.zero_grad(set_to_none=False)
    ddp(data).square().mean().backward()
    return [parameter.grad.clone() for parameter in ddp.parameters()]


def with_hook(state: Any, hook: Any) -> Attach:
    return lambda ddp: ddp.register_comm_hook(state, hook)


def same_everywhere(world: World, tensors: list[Tensor]) -> None:
    flat = torch.cat([tensor.view(-1) for tensor in tensors])
    others = [torch.empty_like(flat) for _ in range(world.size)]
    dist.all_gather(others, flat)
    bits = flat.view(torch.int32)
    assert all(torch.equal(bits, other.view(torch.int32)) for other in others)


def off(ours: list[Tensor], exact: list[Tensor]) -> float:
    """The largest error, over the largest magnitude."""
    pairs = list(zip(ours, exact, strict=True))
    worst = max(float((a - b).abs().max()) for a, b in pairs)
    return worst / max(float(b.abs().max()) for _, b in pairs)


def every_hook_gives_the_average_within_its_precision_and_the_same_bits(world: World) -> None:
    plain = wrapped(None)
    exact = [step(world, plain, number) for number in range(3)]
    state = Int8State()
    hooks: list[tuple[str, Any, Any, float]] = [
        ("fp16", None, fp16_hook, 2e-3),
        ("bf16", None, bf16_hook, 1.5e-2),
        ("int8", state, int8_hook, 3e-2),
        ("whole", TopKState(momentum=0.0, sparsity=0.0), top_k_hook, 1e-5),
    ]
    for name, kept, hook, limit in hooks:
        ddp = wrapped(with_hook(kept, hook))
        for number in range(3):
            ours = step(world, ddp, number)
            same_everywhere(world, ours)
            assert off(ours, exact[number]) < limit, (name, number, off(ours, exact[number]))
    state.close()


def hooks_take_a_group_and_narrow_gradients(world: World) -> None:
    group = dist.new_group(list(range(world.size)))
    plain = wrapped(None, network().double())
    for state, hook in ((group, bf16_hook), (Int8State(group, least=16), int8_hook)):
        wide = wrapped(with_hook(state, hook), network().double())
        exact, ours = gradients64(world, plain), gradients64(world, wide)
        assert off(ours, exact) < 3e-2
        narrow = wrapped(with_hook(state, hook), network().to(torch.bfloat16))
        seeded = torch.Generator().manual_seed(world.rank)
        narrow(torch.randn(16, 64, generator=seeded).to(torch.bfloat16)).sum().backward()
        assert all(bool(each.grad.isfinite().all()) for each in narrow.parameters())
        if isinstance(state, Int8State):
            state.close()


def gradients64(world: World, ddp: DistributedDataParallel) -> list[Tensor]:
    seeded = torch.Generator().manual_seed(world.rank)
    ddp.zero_grad(set_to_none=False)
    ddp(torch.randn(16, 64, generator=seeded).double()).square().mean().backward()
    return [parameter.grad for parameter in ddp.parameters()]


def parameters_without_gradients_do_no_harm(world: World) -> None:
    for state, hook in ((Int8State(least=16), int8_hook), (TopKState(least=64), top_k_hook)):
        model = nn.ModuleDict({"used": network(), "idle": nn.Linear(300, 300)})
        ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB, find_unused_parameters=True)
        model.forward = lambda data, model=model: model["used"](data)  # type: ignore[method-assign]
        ddp.register_comm_hook(state, hook)
        for number in range(3):
            data = torch.randn(4, 64, generator=torch.Generator().manual_seed(world.rank))
            ddp.zero_grad(set_to_none=False)
            ddp(data * (number + 1)).square().mean().backward()
            same_everywhere(world, [each.grad for each in model["used"].parameters()])
        if isinstance(state, Int8State):
            state.close()


def what_int8_loses_comes_with_later_steps(world: World) -> None:
    """Of the same gradient n times, the sum is off by one rounding, not by n."""
    exact = step(world, wrapped(None))
    sums = {}
    for feedback in (True, False):
        state = Int8State(error_feedback=feedback, least=16)
        ddp = wrapped(with_hook(state, int8_hook))
        totals = [torch.zeros_like(each) for each in exact]
        for _ in range(20):
            for total, gradient in zip(totals, step(world, ddp), strict=True):
                total.add_(gradient, alpha=1 / 20)
        sums[feedback] = off(totals, exact)
        state.close()
    assert sums[True] < 2e-3, sums
    assert sums[True] < sums[False] / 2, sums


def top_k_sends_everything_in_the_end(world: World) -> None:
    """Without momentum: what has been applied and what still is at home add up to all gradients,
    also across the first step, after which DDP has other buckets."""
    state = TopKState(momentum=0.0, sparsity=0.9, least=64)
    ddp, plain = wrapped(with_hook(state, top_k_hook)), wrapped(None)
    sent = [torch.zeros_like(parameter) for parameter in ddp.parameters()]
    due = [torch.zeros_like(parameter) for parameter in ddp.parameters()]
    for number in range(4):
        ours, exact = step(world, ddp, number), step(world, plain, number)
        for index in range(len(sent)):
            sent[index] += ours[index]
            due[index] += exact[index]
        share = sum(int((each != 0).sum()) for each in ours) / sum(each.numel() for each in ours)
        assert share < 0.12 * world.size, share
        same_everywhere(world, ours)
    assert state.step == 4
    for index, parameter in enumerate(ddp.parameters()):
        home = state.gathered.values(parameter)
        assert home is not None
        everywhere = home.clone().view_as(parameter)
        dist.all_reduce(everywhere)
        total = sent[index] + everywhere / world.size
        assert torch.allclose(total, due[index], atol=1e-5), index


def top_k_that_sends_all_is_sgd_with_momentum(world: World) -> None:
    losses = []
    for mine in (True, False):
        state = TopKState(momentum=0.9, sparsity=0.0)
        ddp = wrapped(with_hook(state, top_k_hook) if mine else None)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.0 if mine else 0.9)
        for number in range(5):
            step(world, ddp, number)
            optimizer.step()
        losses.append([each.detach().clone() for each in ddp.parameters()])
    assert off(*losses) < 1e-5, off(*losses)


def warm_up_grows_sparser_by_stage(world: World) -> None:
    state = TopKState(sparsity=0.99, warm_up=WarmUp(4, (0.5, 0.9)), least=64)
    ddp = wrapped(with_hook(state, top_k_hook))
    seen = []
    for number in range(6):
        seen.append(state.sparsity)
        step(world, ddp, number)
    assert seen == [0.5, 0.5, 0.9, 0.9, 0.99, 0.99], seen


def an_overflow_is_seen_by_all_ranks_and_forgotten(world: World) -> None:
    last = world.size - 1
    hooks: list[tuple[Any, Any]] = [
        (None, fp16_hook), (Int8State(least=16), int8_hook),
        (TopKState(sparsity=0.5, least=64), top_k_hook),
        (TopKState(sparsity=0.0), top_k_hook),
    ]  # fmt: skip
    for state, hook in hooks:
        ddp = wrapped(with_hook(state, hook))
        step(world, ddp)
        ddp.zero_grad(set_to_none=False)
        scale = 1e38 if world.rank == last else 1.0
        (ddp(torch.full((2, 64), scale)).sum() * scale).backward()
        gone = [not bool(each.grad.isfinite().all()) for each in ddp.parameters()]
        assert any(gone), hook
        later = step(world, ddp, 2)
        assert all(bool(each.isfinite().all()) for each in later), hook
        if isinstance(state, Int8State):
            state.close()


def scaled(
    world: World, state: Any, hook: Any, scales: list[float], at: list[float]
) -> list[list[Tensor]]:
    """The gradients of a step for each scale, as a GradScaler's optimizer has them; a scale of
    infinity is a step that overflows on the last rank, which no optimizer makes."""
    ddp, found = wrapped(with_hook(state, hook)), []
    for number, scale in enumerate(scales):
        is_gone = math.isinf(scale)
        if not is_gone:
            at[0] = scale
        data = torch.randn(16, 64, generator=torch.Generator().manual_seed(world.rank))
        ddp.zero_grad(set_to_none=False)
        wrong = is_gone and world.rank == world.size - 1
        (ddp(data).square().mean() * (scale if wrong else at[0])).backward()
        gradients = [parameter.grad / at[0] for parameter in ddp.parameters()]
        assert all(bool(each.isfinite().all()) for each in gradients) is not is_gone, number
        if not is_gone:
            found.append(gradients)
    return found


def what_hooks_keep_follows_a_gradient_scaler(world: World) -> None:
    def states(at: list[float]) -> list[tuple[Any, Any]]:
        return [
            (TopKState(sparsity=0.9, least=64, scale=lambda: at[0]), top_k_hook),
            (TopKState(sparsity=0.0, scale=lambda: at[0]), top_k_hook),
            (Int8State(least=16, scale=lambda: at[0]), int8_hook),
        ]

    plain, changing = [1.0] * 5, [1024.0, 64.0, math.inf, 64.0, math.inf, 4096.0, 1.0]
    one, two = [1.0], [1.0]
    for (exact, hook), (state, _) in zip(states(one), states(two), strict=True):
        pairs = zip(
            scaled(world, exact, hook, plain, one), scaled(world, state, hook, changing, two),
            strict=True,
        )  # fmt: skip
        for number, (right, ours) in enumerate(pairs):
            if hook is top_k_hook:  # scales are powers of two, so nothing is rounded otherwise
                assert all(map(torch.equal, right, ours)), (hook, number)
            else:  # the ranks that did not overflow keep what that step's rounding lost
                assert off(ours, right) < 0.02, (hook, number, off(ours, right))
        for each in (exact, state):
            if isinstance(each, Int8State):
                each.close()


def what_is_kept_follows_the_scale_whichever_buckets_keep_something(world: World) -> None:
    """Small and sparse ones do not, and the last may be one of these."""

    class Bucket:
        def index(self) -> int:
            return 1

        def is_last(self) -> bool:
            return False

        def buffer(self) -> Tensor:
            return torch.zeros(8)

        def parameters(self) -> list[Tensor]:
            return []

        gradients = parameters

    asked: list[float] = []
    scales = iter([4.0, 2.0, 8.0, 8.0])
    kept = ErrorFeedback(lambda: asked.append(next(scales)) or asked[-1])  # type: ignore[func-returns-value]
    kept.of(Bucket()).fill_(1.0)
    for due in (0.5, 2.0, 2.0):
        assert kept.of(Bucket()).tolist() == [due] * 8, (due, asked)


def sparse_gradients_are_averaged_by_every_hook(world: World) -> None:
    for make, hook in (
        (lambda: None, bf16_hook), (lambda: None, fp16_hook),
        (lambda: Int8State(least=0), int8_hook), (lambda: TopKState(least=0), top_k_hook),
    ):  # fmt: skip
        state: Any = make()
        torch.manual_seed(3)
        ddp = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
        ddp.register_comm_hook(state, hook)
        for _ in range(2):
            ddp.zero_grad(set_to_none=True)
            ddp(torch.tensor([world.rank, 9])).sum().backward()
            found = ddp.module.weight.grad.to_dense()
            expected = torch.zeros(10, 4)
            expected[: world.size] = 1 / world.size
            expected[9] = 1
            assert torch.equal(found, expected), (hook, found)
        if isinstance(state, Int8State):
            state.close()


def a_hook_that_fails_is_an_error_of_the_backward_pass(world: World) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError(f"rank {world.rank} cannot")

    def staged(state: object, bucket: dist.GradBucket) -> Any:
        work = HostWork(torch.device("cpu"), [bucket.buffer()], 10.0)
        work.run(fails)
        return work.get_future()

    order = Order()

    def ordered(state: object, bucket: dist.GradBucket) -> Any:
        return order.submit(fails, bucket.buffer())

    for hook in (staged, ordered):
        # DDP compares a hook's annotations with classes
        hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
        ddp = wrapped(with_hook(None, hook))
        try:
            step(world, ddp)
        except RuntimeError as error:
            assert f"rank {world.rank} cannot" in str(error), error
        else:
            raise AssertionError(f"{hook} did not fail")
    order.close()


def the_group_of_the_int8_hook_has_the_deadline_of_its_parent(world: World) -> None:
    group = dist.new_group(timeout=timedelta(seconds=77))
    state = Int8State(group)
    assert timeout_of(state.exchange) == timedelta(seconds=77)
    assert timeout_of(world.gloo) is not None
    state.close()


def every_hook_trains_as_without(world: World) -> None:
    """A small regression: the loss after 40 steps is near that of float32."""
    ends = {}
    int8 = Int8State(least=16)
    choices: dict[str, tuple[Any, Any]] = {
        "float32": (None, None), "bf16": (None, bf16_hook), "fp16": (None, fp16_hook),
        "int8": (int8, int8_hook),
        "top-k": (TopKState(momentum=0.0, sparsity=0.9, warm_up=WarmUp(8), least=64), top_k_hook),
    }  # fmt: skip
    seeded = torch.Generator().manual_seed(world.rank)
    data = torch.randn(64, 64, generator=seeded)
    target = torch.tanh(data[:, :3] - data[:, 3:6])
    for name, (state, hook) in choices.items():
        ddp = wrapped(with_hook(state, hook) if hook else None, copy.deepcopy(network()))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        loss = torch.zeros(())
        for _ in range(40):
            optimizer.zero_grad()
            loss = (ddp(data) - target).square().mean()
            loss.backward()
            optimizer.step()
        ends[name] = float(loss.detach())
    int8.close()
    exact = ends.pop("float32")
    for name, end in ends.items():
        limit = 1.5 if name == "top-k" else 1.05
        assert end < exact * limit, (name, end, exact)


CHECKS = (
    every_hook_gives_the_average_within_its_precision_and_the_same_bits,
    hooks_take_a_group_and_narrow_gradients,
    parameters_without_gradients_do_no_harm,
    what_int8_loses_comes_with_later_steps,
    top_k_sends_everything_in_the_end,
    top_k_that_sends_all_is_sgd_with_momentum,
    warm_up_grows_sparser_by_stage,
    an_overflow_is_seen_by_all_ranks_and_forgotten,
    what_hooks_keep_follows_a_gradient_scaler,
    what_is_kept_follows_the_scale_whichever_buckets_keep_something,
    sparse_gradients_are_averaged_by_every_hook,
    a_hook_that_fails_is_an_error_of_the_backward_pass,
    the_group_of_the_int8_hook_has_the_deadline_of_its_parent,
    every_hook_trains_as_without,
)
