"""Sharded training on our backend against gloo or one process; with
ranks_groups.py."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from muster_collectives.runtime.types import Verb
from muster_collectives.torch import stats
from tests.collectives.support.torch_ranks import World

warnings.filterwarnings("ignore")
STEPS = 3


def network() -> nn.Module:
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 4))


def data(world: World, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    seeded = torch.Generator().manual_seed(step * 100 + world.rank)
    return torch.randn(4, 12, generator=seeded), torch.randn(4, 4, generator=seeded)


def trained(world: World, model: nn.Module, optimizer: Any) -> list[float]:
    losses = []
    for step in range(STEPS):
        given, wanted = data(world, step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(given), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def expected(world: World) -> list[float]:
    """The losses of plain data parallel over gloo."""
    model = nn.parallel.DistributedDataParallel(network(), process_group=world.gloo)
    return trained(world, model, torch.optim.Adam(model.parameters(), lr=0.01))


def near(ours: list[float], theirs: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)


def fsdp1_trains_as_data_parallel(world: World) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
    from torch.distributed.fsdp import ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    theirs = expected(world)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        before = stats().calls(Verb.REDUCE_SCATTER)
        model = Fsdp(
            network(), device_id=torch.device("cpu"), sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True,
        )  # fmt: skip
        near(trained(world, model, torch.optim.Adam(model.parameters(), lr=0.01)), theirs)
        assert stats().calls(Verb.REDUCE_SCATTER) > before
    assert not stats().fallback


def fsdp2_trains_as_data_parallel(world: World) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    theirs = expected(world)
    mesh = init_device_mesh("cpu", (world.size,))
    before = stats()
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    near(trained(world, model, torch.optim.Adam(model.parameters(), lr=0.01)), theirs)
    after = stats()
    assert after.calls(Verb.ALL_GATHER) > before.calls(Verb.ALL_GATHER)
    assert after.calls(Verb.REDUCE_SCATTER) > before.calls(Verb.REDUCE_SCATTER)
    assert not after.fallback


def dtensors_are_laid_out_anew(world: World) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world.size,))
    torch.manual_seed(1)
    whole = torch.randn(world.size * 4, world.size * 3)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.full_tensor(), whole)
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.to_local(), whole.chunk(world.size, 1)[world.rank])
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
    total = rows.sum()
    torch.testing.assert_close(total.full_tensor(), whole.sum())
    from torch.distributed.tensor import DTensor

    partial = DTensor.from_local(whole, mesh, [Partial()])
    scattered = partial.redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(scattered.to_local(), rows.to_local() * world.size)


def tensor_parallel_layers_are_the_layers(world: World) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world.size,))
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    split = parallelize_module(
        copy.deepcopy(plain), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    given = torch.randn(5, 8)
    ours, theirs = split(given), plain(given)
    torch.testing.assert_close(ours, theirs)
    ours.sum().backward()
    theirs.sum().backward()
    weight: Any = split.get_parameter("0.weight").grad
    torch.testing.assert_close(weight.full_tensor(), plain.get_parameter("0.weight").grad)


def optimizer_states_are_sharded(world: World) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    near(trained(world, model, optimizer), expected(world))
    optimizer.consolidate_state_dict(0)
    if world.rank == 0:
        assert optimizer.state_dict()["state"]


def checkpoints_are_saved_and_loaded(world: World) -> None:
    import torch.distributed.checkpoint as saved
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world.size,))
    whole = torch.arange(float(world.size * 6)).view(-1, 2)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)])}
    folder = str(world.folder / "checkpoint")
    saved.save(state, checkpoint_id=folder)
    fresh = {"weight": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(0)])}
    saved.load(fresh, checkpoint_id=folder)
    assert torch.equal(fresh["weight"].full_tensor(), whole)


CHECKS = (
    fsdp1_trains_as_data_parallel,
    fsdp2_trains_as_data_parallel,
    dtensors_are_laid_out_anew,
    tensor_parallel_layers_are_the_layers,
    optimizer_states_are_sharded,
    checkpoints_are_saved_and_loaded,
)
