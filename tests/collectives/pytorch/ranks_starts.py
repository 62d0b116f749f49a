"""A backend that has to start in poor places; in the job of ranks_stock.py. Each check makes its
groups itself, in the environment that it is about."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from muster_collectives.runtime.errors import SettingsError
from muster_collectives.torch import MusterProcessGroup, stats
from tests.collectives.support.torch_ranks import World

warnings.filterwarnings("ignore")
AT_ONCE_S = 30.0  # far below the deadline of the job's groups


@contextmanager
def started(world: World, backend: str = "", **environ: str) -> Iterator[None]:
    """The world's group, made where these variables are set."""
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    try:
        world.start(backend)
        yield
    finally:
        world.drop()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def verbs_work(size: int, rank: int) -> None:
    assert isinstance(dist.group.WORLD, MusterProcessGroup)
    one = torch.full((3,), float(rank))
    dist.all_reduce(one)
    assert one.tolist() == [sum(range(size))] * 3
    dist.all_reduce(one, async_op=True).wait()
    out = torch.zeros(2 * size)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
    assert out.tolist() == [float(each) for each in range(size) for _ in range(2)]
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, out)
    assert part.tolist() == [rank * size] * 2
    outs, ins = [torch.zeros(2 * size)], [torch.full((2,), float(rank))]
    dist.group.WORLD.all_gather_single_coalesced(outs, ins).wait()
    assert torch.equal(outs[0], out)
    swapped = torch.zeros(size)
    dist.all_to_all_single(swapped, torch.full((size,), float(rank)))
    assert swapped.tolist() == list(range(size))
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(size)]
    if rank < 2 <= size:
        got = torch.zeros(2)
        ops = [dist.P2POp(dist.isend, one[:2], rank ^ 1), dist.P2POp(dist.irecv, got, rank ^ 1)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert torch.equal(got, one[:2])
    alone = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(got if size > 1 else one, group=alone)
    dist.barrier()


def it_starts_without_a_core_on_gloo_and_says_why(world: World) -> None:
    with started(world, COLLECTIVES_CORE="/no/such/core.so"):
        verbs_work(world.size, world.rank)
        assert stats().transport == "gloo"
        assert "/no/such/core.so" in stats().why
        assert stats().fallback["allreduce"] == 2


def one_rank_without_a_core_brings_all_to_gloo(world: World) -> None:
    one = {"COLLECTIVES_GLOO": "1"} if world.rank == 1 else {}
    with started(world, **one):
        verbs_work(world.size, world.rank)
        assert stats().why == "rank 1 cannot take part: COLLECTIVES_GLOO=1"


def it_starts_between_nodes(world: World) -> None:
    """Ranks that may not share memory: the last is a node of its own."""
    node = "far" if world.rank == world.size - 1 else "near"
    with started(world, COLLECTIVES_NODE=node):
        verbs_work(world.size, world.rank)
        communicator = dist.group.WORLD.communicator
        assert communicator.nodes == (*[0] * (world.size - 1), 1)
        assert stats().core is not None
        assert not stats().fallback


def it_starts_with_one_rank(world: World) -> None:
    for backend in ("muster", "smddp", "cpu:muster,cuda:muster", "cpu:muster,cuda:gloo"):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        verbs_work(1, 0)
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
        ddp(torch.ones(2, 4)).sum().backward()
        assert ddp.module.weight.grad.tolist() == [[2.0] * 4] * 2
        dist.destroy_process_group()


def it_lives_beside_other_backends(world: World) -> None:
    with started(world, "gloo"):
        ours = dist.new_group(backend="muster")
        one = torch.ones(1)
        dist.all_reduce(one, group=ours)
        dist.all_reduce(one)
        assert one.item() == world.size**2


def a_setting_that_cannot_be_used_is_an_error_on_every_rank(world: World) -> None:
    wrong = {"COLLECTIVES_CHUNK_BYTES": "many"} if world.rank == 1 else {}
    try:
        with started(world, **wrong):
            pass
    except SettingsError as error:
        assert "COLLECTIVES_CHUNK_BYTES" in str(error)
        assert "rank 1" in str(error)
        assert str(error).count("Fix: ") == 1
    else:
        raise AssertionError("it started")


def an_interface_that_one_host_lacks_is_an_error_on_every_rank(world: World) -> None:
    wrong = {"COLLECTIVES_INTERFACE": "ib7"} if world.rank == 1 else {}
    began = time.monotonic()
    try:
        with started(world, **wrong):
            pass
    except SettingsError as error:
        assert "rank 1 cannot take part: COLLECTIVES_INTERFACE='ib7'" in str(error)
        assert time.monotonic() - began < AT_ONCE_S
    else:
        raise AssertionError(f"it started: {stats().why}")


CHECKS = (
    it_starts_without_a_core_on_gloo_and_says_why,
    one_rank_without_a_core_brings_all_to_gloo,
    it_starts_between_nodes,
    it_starts_with_one_rank,
    it_lives_beside_other_backends,
    a_setting_that_cannot_be_used_is_an_error_on_every_rank,
    an_interface_that_one_host_lacks_is_an_error_on_every_rank,
)
