"""Registered memory under DDP and FSDP2, then the hooks; run by test_hooks_registered.py."""

from __future__ import annotations

import copy
import gc
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from muster_collectives.runtime.types import Path
from muster_collectives.torch import memory, stats
from muster_collectives.torch.buckets import RegisteredBuckets, registered_hook
from tests.collectives.pytorch.training import ranks_hooks
from tests.collectives.support.torch_ranks import Check, World, main

warnings.filterwarnings("ignore")


def network(width: int = 256) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                         nn.Linear(width, 8))  # fmt: skip


def data(world: World, number: int) -> Tensor:
    seeded = torch.Generator().manual_seed(1000 * number + world.rank)
    return torch.randn(16, 64, generator=seeded)


def direct_calls() -> int:
    core = stats().core
    assert core is not None
    return core.paths[Path.DIRECT]


def ddp_of(model: nn.Module, group: Any = None) -> DistributedDataParallel:
    return DistributedDataParallel(
        model, bucket_cap_mb=0.2, gradient_as_bucket_view=True, process_group=group
    )


def ordinary(group: Any = None) -> DistributedDataParallel:
    """The same model and averages, without registered memory."""
    ddp = ddp_of(network(), group)
    ddp.register_comm_hook(RegisteredBuckets(group, limit=0), registered_hook)
    return ddp


def gradients(ddp: nn.Module, batch: Tensor) -> list[Tensor]:
    ddp.zero_grad(set_to_none=False)
    ddp(batch).square().mean().backward()
    return [parameter.grad for parameter in ddp.parameters()]


def ddp_reduces_its_buckets_where_they_are(world: World) -> None:
    state = RegisteredBuckets(least_bytes=4096)
    ours, plain = ddp_of(network()), ordinary()
    ours.register_comm_hook(state, registered_hook)
    for number in range(4):
        before = direct_calls()
        mine, exact = gradients(ours, data(world, number)), gradients(plain, data(world, number))
        for a, b in zip(mine, exact, strict=True):
            assert torch.equal(a, b)  # sums in the same order: the same bits
        assert (direct_calls() > before) == (number > 0), number
    assert state.registered >= 2, state.regions
    stock = gradients(ddp_of(network()), data(world, 3))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, stock, strict=True))
    places = [(each.address, each.address + each.bytes) for each in state.regions.values() if each]
    inside = [any(low <= grad.data_ptr() < high for low, high in places) for grad in mine]
    assert sum(inside) >= 4, inside  # gradients are views of the registered buckets


def without_sync_gradients_gather_in_registered_buckets(world: World) -> None:
    state = RegisteredBuckets(least_bytes=4096)
    ours, plain = ddp_of(network()), ordinary()
    ours.register_comm_hook(state, registered_hook)
    for number in range(3):
        for ddp in (ours, plain):
            ddp.zero_grad(set_to_none=False)
            with ddp.no_sync():
                ddp(data(world, number)).square().mean().backward()
            ddp(data(world, number + 10)).square().mean().backward()
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
    assert state.registered


def where_one_rank_cannot_register_none_does(world: World) -> None:
    state = RegisteredBuckets(least_bytes=4096)
    ours, plain = ddp_of(network()), ordinary()
    ours.register_comm_hook(state, registered_hook)
    share = torch.UntypedStorage._share_fd_cpu_

    def refused(storage: Any) -> Any:
        raise RuntimeError("unable to allocate shared memory: no space left on device")

    if world.rank == 0:
        torch.UntypedStorage._share_fd_cpu_ = refused
    try:
        for number in range(3):
            mine = gradients(ours, data(world, number))
            exact = gradients(plain, data(world, number))
            assert all(torch.equal(a, b) for a, b in zip(mine, exact, strict=True))
    finally:
        torch.UntypedStorage._share_fd_cpu_ = share
    assert state.registered == 0 and state.regions


def other_backends_take_the_hook_too(world: World) -> None:
    state = RegisteredBuckets(world.gloo, least_bytes=4096)
    ours, plain = ddp_of(network(), world.gloo), ordinary(world.gloo)
    ours.register_comm_hook(state, registered_hook)
    for number in range(3):
        mine, exact = gradients(ours, data(world, number)), gradients(plain, data(world, number))
        assert all(torch.allclose(a, b) for a, b in zip(mine, exact, strict=True))
    assert state.registered == 0


def a_model_and_its_hook_may_go_before_the_group(world: World) -> None:
    for _ in range(3):
        ours = ddp_of(network())
        ours.register_comm_hook(RegisteredBuckets(least_bytes=4096), registered_hook)
        for number in range(2):
            gradients(ours, data(world, number))
        del ours
        gc.collect()
    # memory that comes into their place is reduced as ever
    for _ in range(20):
        tensor = torch.full((100_000,), float(world.rank))
        dist.all_reduce(tensor)
        assert bool((tensor == sum(range(world.size))).all())


def places_of_a_pool_come_back_when_their_tensors_are_gone(world: World) -> None:
    pool = memory.RegisteredPool(dist.group.WORLD, slots=2, least_bytes=4096)
    cpu = torch.device("cpu")
    held = [pool.empty((5000,), torch.float32, cpu) for _ in range(3)]
    assert (pool.registered, pool.ordinary) == (2, 1)
    place = held[0].data_ptr()
    view = held[0][10:20]
    held[0] = torch.empty(0)
    assert pool.empty((5000,), torch.float32, cpu).data_ptr() != place  # a view is still there
    del view
    again = pool.empty((10, 500), torch.float32, cpu)
    assert again.data_ptr() == place and again.shape == (10, 500)
    again.fill_(world.rank + 1.0)
    before = direct_calls()
    dist.all_reduce(again)
    assert direct_calls() == before + 1
    assert bool((again == world.size * (world.size + 1) / 2).all())
    try:
        pool.close()
    except RuntimeError as error:
        assert "still lie" in str(error)
    else:
        raise AssertionError("closed under a tensor")
    del again, held
    gc.collect()
    pool.close()


def fsdp_gathers_and_reduces_in_registered_memory(world: World) -> None:
    from muster_collectives.torch.fsdp import use_registered_memory  # newer torch only

    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    made = {}
    for name in ("plain", "registered"):
        model = copy.deepcopy(network())
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        made[name] = fully_shard(model, mesh=mesh)
    pool = use_registered_memory(made["registered"])
    optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in made.items()}
    for number in range(4):
        losses = {}
        for name, model in made.items():
            before = direct_calls()
            loss = model(data(world, number)).square().mean()
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            losses[name] = float(loss.detach())
            assert (direct_calls() > before) == (name == "registered")
        assert losses["plain"] == losses["registered"], losses
    pairs = zip(made["plain"].parameters(), made["registered"].parameters(), strict=True)
    for a, b in pairs:
        assert torch.equal(a.to_local(), b.to_local())
    assert pool.registered >= 4 * 3 and pool.ordinary < pool.registered, vars(pool)


def fsdp_without_shards_is_refused(world: World) -> None:
    from muster_collectives.torch.fsdp import use_registered_memory  # newer torch only

    del world
    try:
        use_registered_memory(network())
    except ValueError as error:
        assert "fully_shard" in str(error)
    else:
        raise AssertionError("nothing was sharded")


CHECKS = (
    ddp_reduces_its_buckets_where_they_are,
    without_sync_gradients_gather_in_registered_buckets,
    where_one_rank_cannot_register_none_does,
    other_backends_take_the_hook_too,
    a_model_and_its_hook_may_go_before_the_group,
    places_of_a_pool_come_back_when_their_tensors_are_gone,
    fsdp_gathers_and_reduces_in_registered_memory,
    fsdp_without_shards_is_refused,
)


def hooks_start_again_on_gloo(world: World) -> None:
    world.drop()
    world.store = dist.PrefixStore("again", world.store)
    world.start("gloo")


def on_gloo(check: Check) -> Check:
    def again(world: World) -> None:
        check(world)

    again.__name__ = f"{check.__name__}_on_gloo"
    return again


if __name__ == "__main__":
    hooks = ranks_hooks.CHECKS
    main((*CHECKS, *hooks, hooks_start_again_on_gloo, *(on_gloo(check) for check in hooks)))
