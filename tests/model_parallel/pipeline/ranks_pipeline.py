"""The pipeline's executor alone: a chain of modules cut by hand, under every schedule.

Two tensors go from stage to stage, one that needs a gradient and one of whole numbers that does
not; each stage adds the second to its input.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

import muster_modelparallel as smp
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.run import session as sessions
from muster_modelparallel.run.pipeline.executor import AHEAD, Pipeline
from muster_modelparallel.run.pipeline.torch_schedules import LOOPS, THERE_AND_BACK, torch_schedule
from muster_modelparallel.shape.schedule import (
    Kind,
    Schedule,
    gpipe,
    in_waves,
    one_f_one_b,
)
from muster_modelparallel.shape.topology import GroupKind
from tests.model_parallel.support import ordered
from tests.model_parallel.support.ranks import give

WIDTH, ROWS = 6, 3
HORIZON = 2


class Stage:
    """Stage `at` of so many, with its own copy of a layer."""

    def __init__(self, layer: nn.Module, at: int, last: int, data: Sequence[torch.Tensor]) -> None:
        self.layer, self.at, self.last, self.data = layer, at, last, data
        self.live: set[int] = set()
        self.most_live = 0
        self.near: set[int] = set()  # backward is told to come soon
        self.told: set[int] = set()
        self.losses: dict[int, torch.Tensor] = {}

    def receives(self, microbatch: int) -> Sequence[Meta]:
        return _metas()

    def sends(self, microbatch: int) -> Sequence[Meta]:
        return _metas()

    def forward(self, microbatch: int, received: Sequence[torch.Tensor]):
        self.live.add(microbatch)
        self.most_live = max(self.most_live, len(self.live))
        if self.at == 0:
            received = self.data[microbatch], torch.tensor([microbatch])
        x, number = received
        out = run(self.layer, x, number)
        if self.at == self.last:
            self.losses[microbatch] = out.square().mean()
            return ()
        return out, number

    def is_known(self, microbatch: int) -> bool:
        return True

    def around(self, microbatch: int, forward: Callable[[], None]) -> None:
        forward()

    def soon(self, microbatch: int) -> None:
        self.near.add(microbatch)
        self.told.add(microbatch)
        assert len(self.near) <= HORIZON + 1

    def roots(self, microbatch: int):
        return [self.losses.pop(microbatch)], [None]

    def backward(self, microbatch: int, ends, seeds) -> None:
        torch.autograd.backward(ends, seeds)

    def done(self, microbatch: int) -> None:
        self.live.remove(microbatch)
        self.near.remove(microbatch)


def run(layer: nn.Module, x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return torch.tanh(layer(x)) + number * x


def _metas() -> Sequence[Meta]:
    device = torch.get_default_device()
    wide = Meta((ROWS, WIDTH), (WIDTH, 1), torch.float64, device, True)
    return wide, Meta((1,), (1,), torch.int64, device, False)


def schedules(ranks: int) -> dict[str, Schedule]:
    found = {
        "GPipe": gpipe(ranks, 8),
        "GPipe in waves of 3": gpipe(ranks, 8, 3),
        "1F1B": one_f_one_b(ranks, 8),
        "1F1B, 2 active": one_f_one_b(ranks, 8, 2),
        "fewer microbatches than ranks": one_f_one_b(ranks, 1),
        "stages that come back": in_waves([*range(ranks), *range(ranks)], 4),
    }
    for name in (*LOOPS, *THERE_AND_BACK):
        found[name] = torch_schedule(name, ranks, 8)
    return found


def main(backend: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if backend == "ordered" and not dist.is_initialized():
        ordered.register()
        dist.init_process_group(backend)
    smp.init({} if backend == "ordered" else {"ddp_dist_backend": backend})
    mesh = sessions.current().mesh
    back = dist.new_group() if backend == "ordered" else None
    pipeline = Pipeline(mesh.group(GroupKind.PP), mesh.device, back=back)
    place = smp.pp_rank()
    said: dict[str, float] = {}
    for name, schedule in schedules(smp.pp_size()).items():
        for parted in (False, True):  # all at once, or forwards and backwards in two calls
            torch.manual_seed(1)
            layers = [nn.Linear(WIDTH, WIDTH) for _ in schedule.rank_of]
            data = [torch.randn(ROWS, WIDTH) for _ in range(schedule.microbatches)]
            whole = copy.deepcopy(layers)
            mine = {
                stage: Stage(layers[stage], stage, len(layers) - 1, data)
                for stage, rank in schedule.rank_of.items()
                if rank == place
            }
            if parted:
                order = in_waves([*schedule.rank_of.values()], schedule.microbatches)
                pipeline.run(order, mine, frozenset([Kind.FORWARD]), horizon=HORIZON)
                pipeline.run(order, mine, frozenset(Kind) - {Kind.FORWARD}, horizon=HORIZON)
            else:
                pipeline.run(schedule, mine, horizon=HORIZON)
            for microbatch, rows in enumerate(data):
                x = rows
                for layer in whole:
                    x = run(layer, x, torch.tensor([microbatch]))
                x.square().mean().backward()
            apart = [
                float((one.grad - other.grad).abs().max() / other.grad.abs().max())
                for stage in mine
                for one, other in zip(
                    layers[stage].parameters(), whole[stage].parameters(), strict=True
                )
            ]
            assert not any(stage.live or stage.near for stage in mine.values())
            assert all(len(stage.told) == schedule.microbatches for stage in mine.values())
            if name == "1F1B" and not parted:
                assert all(one.most_live <= smp.pp_size() - place for one in mine.values())
            said[f"{name}{', in two calls' if parted else ''}"] = max(apart)
    give({"said": said, "ahead": AHEAD})


if __name__ == "__main__":
    main(sys.argv[1])
