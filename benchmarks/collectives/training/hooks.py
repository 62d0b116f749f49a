"""Compressing hooks of data parallelism: ours over our group, torch's over gloo and over ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.collectives.training.rows import BF16, FP16, GLOO, INT8, OURS, STOCK, WIDE
from benchmarks.collectives.training.steps import (
    Trained,
    bytes_of,
    network,
    require_alike,
    step_of,
)
from muster_collectives.tools.bench.group import BenchGroup

WIDTH, LAYERS = 1024, 3
# of the largest gradient: what 16 bits, and 8 bits on either side, may lose
CLOSE_16, CLOSE_8 = 2e-2, 6e-2


def trained(group: BenchGroup) -> Iterator[Trained]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from muster_collectives.torch.hooks import bf16_hook, fp16_hook

    yield halves(group, FP16, fp16_hook, default_hooks.fp16_compress_hook)
    # DDP refuses the hook of that name where there is no CUDA; what it does runs
    yield halves(
        group, BF16, bf16_hook,
        lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket),  # noqa: PLW0108
    )  # fmt: skip
    yield int8(group)


def halves(group: BenchGroup, what: str, own: Any, stock: Any) -> Trained:
    world = group.dist.group.WORLD
    models = {
        OURS: _hooked(group, world, world, own),
        STOCK: _hooked(group, world, world, stock),
        GLOO: _hooked(group, group.gloo, group.gloo, stock),
    }
    return _ready(group, what, models, CLOSE_16)


def int8(group: BenchGroup) -> Trained:
    """torch has none for processors: its hook reads a form of result that only NCCL gives."""
    from torch.nn.parallel import DistributedDataParallel as Parallel

    from muster_collectives.torch.hooks import Int8State, int8_hook

    states = [Int8State(), Int8State(group.gloo)]
    models = {
        OURS: _hooked(group, group.dist.group.WORLD, states[0], int8_hook),
        GLOO: _hooked(group, group.gloo, states[1], int8_hook),
        WIDE: Parallel(network(group, WIDTH, LAYERS), process_group=group.gloo),
    }

    def close() -> None:
        for state in states:
            state.close()

    return _ready(group, INT8, models, CLOSE_8)._replace(close=close)


def _hooked(group: BenchGroup, where: Any, state: Any, hook: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel as Parallel

    model = Parallel(network(group, WIDTH, LAYERS), process_group=where)
    model.register_comm_hook(state, hook)
    return model


def _ready(group: BenchGroup, what: str, models: dict[str, Any], close: float) -> Trained:
    steps = {name: step_of(group, model, WIDTH) for name, model in models.items()}
    for step in steps.values():
        step()
    for name, model in models.items():
        if name != GLOO:
            require_alike(group, model, models[GLOO], close)
    return Trained(what, bytes_of(models[GLOO]), steps)
