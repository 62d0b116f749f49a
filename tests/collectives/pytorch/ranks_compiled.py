"""Collectives inside of compiled functions and models, by the inductor; run by test_verbs.py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster_collectives.runtime.types import Verb
from muster_collectives.torch import stats
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
# All of a job's ranks and both models compile the same few functions
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(os.environ["CHECKS_FOLDER"], "made"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
BUCKET_MB = 1  # as DDP's first: the graph is cut in two
Function = Callable[[Tensor], Tensor]


def single(value: Tensor) -> Tensor:
    """Each functional collective of one tensor, between things that are computed."""
    group: Any = dist.group.WORLD
    size = group.size()
    total = functional.all_reduce(value * 2, "sum", group) + 1
    mean = functional.all_reduce(value * 3, "avg", group)
    every = functional.all_gather_tensor(total - 1, 0, group) * 2
    part = functional.reduce_scatter_tensor(every + 1, "sum", 0, group)
    swapped = functional.all_to_all_single(value.repeat(size), None, None, group) - 1
    first = functional.broadcast(value + 5, 0, group)
    return total + mean + part + first + swapped.view(size, -1).sum(0)


def coalesced(value: Tensor) -> Tensor:
    """Each functional collective of several tensors."""
    group: Any = dist.group.WORLD
    size = group.size()
    a, b = functional.all_reduce_coalesced([value * 2, value + 1], "sum", group)
    c, d = functional.all_gather_into_tensor_coalesced([a * b, value[:8] + 1], group)
    e, f = functional.reduce_scatter_tensor_coalesced([c + 1, d.repeat(2)], "sum", [0, 0], group)
    return e + f.sum() + c.view(size, -1)[0]


def plain(value: Tensor) -> Tensor:
    """The verbs of torch.distributed, which are traced as functional ones."""
    whole = value * 2
    dist.all_reduce(whole)
    gathered = torch.empty(dist.get_world_size() * whole.numel())
    dist.all_gather_into_tensor(gathered, whole + 1)
    part = torch.empty_like(whole)
    dist.reduce_scatter_tensor(part, gathered * 3)
    return part - whole


def counted(function: Function, value: Tensor) -> tuple[Tensor, dict[Verb, int]]:
    """The result, and the core's calls that it came to."""
    before = stats()
    found = function(value) + 0
    after = stats()
    assert after.fallback == before.fallback, after.fallback
    calls = {verb: after.calls(verb) - before.calls(verb) for verb in Verb}
    return found, {verb: count for verb, count in calls.items() if count}


def compiled_as_eager(world: World, function: Function) -> None:
    """Whole, without a break (`fullgraph`), twice: traced and from what was made."""
    made = torch.compile(function, backend="inductor", fullgraph=True)
    for number in range(2):
        value = torch.arange(64.0) * (number + 1) + world.rank  # whole numbers: every sum is exact
        expected, calls = counted(function, value)
        found, made_calls = counted(made, value)
        assert torch.equal(found, expected), (function.__name__, number)
        assert made_calls == calls, (made_calls, calls)
        assert len(calls) >= 3, calls


def compiled_collectives_of_one_tensor_are_the_eager_ones(world: World) -> None:
    compiled_as_eager(world, single)


def compiled_collectives_of_several_tensors_are_the_eager_ones(world: World) -> None:
    compiled_as_eager(world, coalesced)


def compiled_verbs_that_are_not_functional_are_the_eager_ones(world: World) -> None:
    compiled_as_eager(world, plain)


def gradients_flow_through_compiled_collectives(world: World) -> None:
    group: Any = dist.group.WORLD

    def loss(value: Tensor) -> Tensor:
        return (functional.all_reduce(value * value, "sum", group) * 3).sum()

    made = torch.compile(loss, backend="inductor", fullgraph=True)
    found = []
    for function in (loss, made):
        value = (torch.arange(16.0) + world.rank).requires_grad_()
        function(value).backward()
        assert value.grad is not None
        found.append(value.grad)
    assert torch.equal(*found) and bool((found[0][1:] != 0).all())


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 600), nn.Tanh(), nn.Linear(600, 600), nn.Linear(600, 3))


def stepped(world: World, model: nn.Module, forward: Any, backward: Any = None) -> nn.Module:
    """The model after two steps of data that differs by rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(2):
        seeded = torch.Generator().manual_seed(100 * step + world.rank)
        given = torch.randn(8, 12, generator=seeded)
        optimizer.zero_grad()
        with backward() if backward else torch.enable_grad():
            forward(given).square().mean().backward()
        optimizer.step()
    return model


def near(ours: nn.Module, exact: nn.Module) -> None:
    for a, b in zip(ours.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def steps_as_eager(world: World, backend: str) -> None:
    """With DDP's own reducer (graphs cut at the buckets), and with the one in Python, whose sums
    are part of the compiled backward pass. In the second step DDP broadcasts new buckets."""
    ddp = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    exact = stepped(world, ddp, ddp)
    for way in ("ddp_optimizer", "python_reducer"):
        torch._dynamo.reset()
        before = stats()
        with torch._dynamo.config.patch(optimize_ddp=way):
            ours = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
            forward = torch.compile(ours, backend=backend)
            backward = None
            if way == "python_reducer":
                make = torch.compile(backend=backend, fullgraph=True)
                backward = partial(torch._dynamo.compiled_autograd._enable, make)
            near(stepped(world, ours, forward, backward), exact)
        after = stats()
        assert after.calls(Verb.ALL_REDUCE) - before.calls(Verb.ALL_REDUCE) >= 2, way
        assert after.fallback == before.fallback
        for parameter in ours.parameters():
            other = parameter.detach().clone()
            dist.broadcast(other, 0)
            assert torch.equal(other, parameter)


def traced_models_step_as_eager_ones_under_ddp(world: World) -> None:
    steps_as_eager(world, "aot_eager")


def compiled_models_step_as_eager_ones_under_ddp(world: World) -> None:
    steps_as_eager(world, "inductor")


CHECKS = (
    compiled_collectives_of_one_tensor_are_the_eager_ones,
    compiled_collectives_of_several_tensors_are_the_eager_ones,
    traced_models_step_as_eager_ones_under_ddp,
    compiled_verbs_that_are_not_functional_are_the_eager_ones,
    gradients_flow_through_compiled_collectives,
    compiled_models_step_as_eager_ones_under_ddp,
)

if __name__ == "__main__":
    main(CHECKS)
