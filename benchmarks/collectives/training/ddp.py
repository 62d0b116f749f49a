"""Data parallelism: three sizes of model, and gradients in registered memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.collectives.training.rows import (
    ALONE,
    DDP,
    DDP_NODES,
    DDP_REGISTERED,
    GLOO,
    OURS,
    REGISTERED,
    SILENT,
)
from benchmarks.collectives.training.steps import (
    Trained,
    bytes_of,
    network,
    require_alike,
    step_of,
)
from muster_collectives.tools.bench.group import BenchGroup

SHAPES = ((256, 3), (1024, 3), (2048, 3))  # width and number of layers: 0.8, 12, 48 MiB
REGISTERED_SHAPE = (1024, 3)
BETWEEN = ((1024, 3), (2304, 3))  # between nodes: 12, 61 MiB
SETTLING = 3  # steps until DDP has cut its buckets anew and they are registered


def trained(group: BenchGroup) -> Iterator[Trained]:
    yield from _trained(group, DDP, SHAPES)
    yield registered(group)


def between_nodes(group: BenchGroup) -> Iterator[Trained]:
    return _trained(group, DDP_NODES, BETWEEN)


def _trained(group: BenchGroup, what: str, shapes: Sequence[tuple[int, int]]) -> Iterator[Trained]:
    from torch.nn.parallel import DistributedDataParallel as Parallel

    for width, layers in shapes:
        models = {
            OURS: Parallel(network(group, width, layers)),
            GLOO: Parallel(network(group, width, layers), process_group=group.gloo),
            SILENT: Parallel(network(group, width, layers), process_group=group.gloo),
            ALONE: network(group, width, layers),
        }
        models[SILENT].register_comm_hook(None, _sent_nowhere)
        steps = {name: step_of(group, model, width) for name, model in models.items()}
        for name in (OURS, GLOO):
            steps[name]()
        require_alike(group, models[OURS], models[GLOO])
        yield Trained(what, bytes_of(models[ALONE]), steps)


def _sent_nowhere(_, bucket):  # type: ignore[no-untyped-def]  # DDP would look at the types
    from torch.futures import Future

    done: Any = Future()
    done.set_result(bucket.buffer())
    return done


def registered(group: BenchGroup) -> Trained:
    """All of them with gradients that are views of their buckets, as the hook wants it."""
    from torch.nn.parallel import DistributedDataParallel as Parallel

    from muster_collectives.torch.buckets import RegisteredBuckets, registered_hook

    width, layers = REGISTERED_SHAPE

    def model() -> object:
        return network(group, width, layers)

    state = RegisteredBuckets()
    models = {
        REGISTERED: Parallel(model(), gradient_as_bucket_view=True),
        OURS: Parallel(model(), gradient_as_bucket_view=True),
        GLOO: Parallel(model(), gradient_as_bucket_view=True, process_group=group.gloo),
        ALONE: model(),
    }
    models[REGISTERED].register_comm_hook(state, registered_hook)
    steps = {name: step_of(group, each, width) for name, each in models.items()}
    for name in (REGISTERED, OURS, GLOO):
        for _ in range(SETTLING):
            steps[name]()
    require_alike(group, models[REGISTERED], models[GLOO])
    if not state.registered:
        raise ValueError("no bucket lies in registered memory")
    return Trained(DDP_REGISTERED, bytes_of(models[ALONE]), steps)
