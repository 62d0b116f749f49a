"""Sharded training: FSDP1, FSDP2 (also in registered memory) and tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.collectives.training.rows import FSDP1, FSDP2, GLOO, OURS, REGISTERED, TENSOR
from benchmarks.collectives.training.steps import (
    Trained,
    bytes_of,
    network,
    require_alike,
    step_of,
)
from muster_collectives.tools.bench.group import BenchGroup

WIDTH, LAYERS = 1024, 2
# of tensor parallelism: each block sums its output forward and its input's gradient backward, 1 MiB
# each; so narrow that sums are a large part of the step
NARROW, BLOCKS, ROWS = 128, 4, 2048


def trained(group: BenchGroup) -> Iterator[Trained]:
    yield fsdp1(group)
    yield fsdp2(group)
    yield tensor(group)


def fsdp1(group: BenchGroup) -> Trained:
    from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({group.torch.nn.Linear})
    models = {
        name: Sharded(
            network(group, WIDTH, LAYERS), process_group=where, auto_wrap_policy=policy,
            device_id=group.torch.device("cpu"), use_orig_params=True,
        )
        for name, where in _places(group)
    }  # fmt: skip
    return _ready(group, FSDP1, models, bytes_of(network(group, WIDTH, LAYERS)))


def fsdp2(group: BenchGroup) -> Trained:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    from muster_collectives.torch.fsdp import use_registered_memory

    models, pools = {}, []
    for name, where in (*_places(group), (REGISTERED, group.dist.group.WORLD)):
        model = network(group, WIDTH, LAYERS)
        mesh = DeviceMesh.from_group(where, "cpu")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        models[name] = fully_shard(model, mesh=mesh)
        if name == REGISTERED:
            pools.append(use_registered_memory(model))
    made = _ready(group, FSDP2, models, bytes_of(network(group, WIDTH, LAYERS)))
    if not all(pool.registered for pool in pools):
        raise ValueError("FSDP2 has not used registered memory")
    return made


def tensor(group: BenchGroup) -> Trained:
    """MLPs one behind the other: the first matrix of each split by columns, the second by rows."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {str(at): (RowwiseParallel if at % 2 else ColwiseParallel)() for at in range(2 * BLOCKS)}
    models = {
        # torch keeps plans for meshes that are equal, and their groups do not count: names do
        name: parallelize_module(
            network(group, NARROW, 2 * BLOCKS),
            DeviceMesh.from_group(where, "cpu", mesh_dim_names=(name,)),
            plan,
        )
        for name, where in _places(group)
    }
    sent = (2 * BLOCKS - 1) * ROWS * NARROW * 4  # the first block's input has no gradient
    return _ready(group, TENSOR, models, sent, NARROW, ROWS, alike=True)


def _places(group: BenchGroup) -> tuple[tuple[str, Any], ...]:
    return ((OURS, group.dist.group.WORLD), (GLOO, group.gloo))


def _ready(
    group: BenchGroup, what: str, models: dict[str, Any], size_bytes: int, width: int = WIDTH,
    batch: int = 16, alike: bool = False,
) -> Trained:  # fmt: skip
    steps = {name: step_of(group, each, width, batch, alike) for name, each in models.items()}
    for step in steps.values():
        step()
    for name, model in models.items():
        if name != GLOO:
            require_alike(group, model, models[GLOO])
    return Trained(what, size_bytes, steps)
