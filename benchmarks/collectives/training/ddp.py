"""Data parallelism: three sizes of model on one machine, two between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.collectives.training.rows import (
    ALONE,
    DDP,
    DDP_NODES,
    GLOO,
    MEETING,
    OURS,
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

SHAPES = ((256, 3), (1024, 3), (2304, 3))  # width and number of layers: 0.8, 12, 61 MiB
BETWEEN = ((1024, 3), (2304, 3))  # between nodes: 12, 61 MiB
SETTLING = 6  # steps until DDP has cut its buckets anew and they are registered


def trained(group: BenchGroup) -> Iterator[Trained]:
    return _trained(group, DDP, SHAPES)


def between_nodes(group: BenchGroup) -> Iterator[Trained]:
    return _trained(group, DDP_NODES, BETWEEN, meets=True)


def _trained(
    group: BenchGroup, what: str, shapes: Sequence[tuple[int, int]], *, meets: bool = False
) -> Iterator[Trained]:
    from torch.nn.parallel import DistributedDataParallel as Parallel

    for width, layers in shapes:
        models = {
            OURS: Parallel(network(group, width, layers)),
            GLOO: Parallel(network(group, width, layers), process_group=group.gloo),
            SILENT: Parallel(network(group, width, layers), process_group=group.gloo),
            ALONE: network(group, width, layers),
        }
        models[SILENT].register_comm_hook(None, _sent_nowhere)
        if meets:
            models[MEETING] = Parallel(network(group, width, layers), process_group=group.gloo)
            models[MEETING].register_comm_hook(group.core.barrier, _met)
        steps = {name: step_of(group, model, width) for name, model in models.items()}
        for name in (OURS, GLOO):
            for _ in range(SETTLING):
                steps[name]()
        require_alike(group, models[OURS], models[GLOO])
        yield Trained(what, bytes_of(models[ALONE]), steps)


def _met(barrier, bucket):  # type: ignore[no-untyped-def]
    barrier()
    return _sent_nowhere(None, bucket)  # type: ignore[no-untyped-call]


def _sent_nowhere(_, bucket):  # type: ignore[no-untyped-def]  # DDP would look at the types
    from torch.futures import Future

    done: Any = Future()
    done.set_result(bucket.buffer())
    return done
