"""The device path over gloo groups, in one job of four ranks; run by test_device.py."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muster_collectives.torch.compress import group_calls
from muster_collectives.torch.cuda.groups import InnerGroups, make_groups, plan_layout
from muster_collectives.torch.cuda.path import DevicePath
from muster_collectives.torch.cuda.settings import DeviceSettings
from muster_collectives.torch.cuda.streams import GroupSum
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
LIMIT_S = 40.0
SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX
ORDERS = {"node by node": (0, 0, 1, 1), "in turn": (0, 1, 0, 1)}
COUNTS = (1, 7, 4096, 50_003)


def gloo(store: Any, rank: int, size: int) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=LIMIT_S))


def groups_of(world: World, nodes: Sequence[int], name: str) -> InnerGroups:
    store = dist.PrefixStore(f"device {name}", world.store)
    return make_groups(store, plan_layout(world.rank, nodes), gloo)


@contextmanager
def path_of(groups: InnerGroups, host: Any = None, **settings: Any) -> Iterator[DevicePath]:
    options: dict[str, Any] = {"least_bytes": 0, "segment_bytes": 65536, **settings}
    path = DevicePath(groups, DeviceSettings(**options), host)
    yield path
    path.close()


def values(world: World, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    seeded = torch.Generator().manual_seed(31 * world.rank + count)
    return torch.randn(count, generator=seeded).to(dtype)


def exact_sum(groups: InnerGroups, tensor: Tensor) -> Tensor:
    total = tensor.double()
    group_calls.all_reduce(groups.world, total, SUM).wait()
    return total


def same_everywhere(world: World, groups: InnerGroups, tensor: Tensor) -> None:
    every = torch.empty(world.size * tensor.numel(), dtype=tensor.dtype)
    group_calls.all_gather(groups.world, every, tensor).wait()
    first, *others = every.view(world.size, -1)
    assert all(torch.equal(first, other) for other in others)


def check_work(work: Any, output: Tensor) -> None:
    """A work is waited for in every way that callers have."""
    assert work.wait() is not False
    assert work.is_completed()
    later: list[Tensor] = work.get_future().then(lambda done: done.value()).wait()
    assert later[0] is output or torch.equal(later[0], output)
    assert work.result()[0] is output and work.exception() is None


def two_levels_give_the_sum_of_all(world: World) -> None:
    for name, nodes in ORDERS.items():
        groups = groups_of(world, nodes, name)
        with path_of(groups, all_reduce="hierarchical") as path:
            for count in COUNTS:
                for op, dtype in ((SUM, torch.float32), (AVG, torch.float32), (SUM, torch.int64)):
                    tensor = values(world, count).mul(100).to(dtype)
                    total = exact_sum(groups, tensor)
                    check_work(path.all_reduce(tensor, op), tensor)
                    expected = total / world.size if op == AVG else total
                    assert torch.allclose(tensor.double(), expected, atol=1e-3), (name, count, op)
                    same_everywhere(world, groups, tensor)
            highest = values(world, 999)
            path.all_reduce(highest, MAX).wait()
            same_everywhere(world, groups, highest)
            assert set(path.calls) == {"all_reduce:hierarchical"}, path.calls


def few_bytes_on_the_rail_stay_near_the_sum(world: World) -> None:
    limits = {"bf16": 2e-2, "fp16": 2e-3, "int8": 3e-2}
    for name, nodes in ORDERS.items():
        groups = groups_of(world, nodes, f"wire {name}")
        for wire, limit in limits.items():
            with path_of(groups, wire=wire) as path:
                for count in COUNTS:
                    tensor = values(world, count)
                    total, scale = exact_sum(groups, tensor), exact_sum(groups, tensor.abs()).max()
                    path.all_reduce(tensor, SUM).wait()
                    off = float((tensor - total).abs().max() / scale)
                    assert off < limit, (wire, count, off)
                    same_everywhere(world, groups, tensor)
                whole = torch.arange(100, dtype=torch.int64)
                path.all_reduce(whole, SUM).wait()  # what is no float32 sum takes the world
                assert torch.equal(whole, torch.arange(100) * world.size)
                assert path.calls["all_reduce:world"] == 1, path.calls


class Scaling:
    """A gloo group that can do PREMUL_SUM, as NCCL can. `sums` counts what is reduced there, by
    operation."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.sums: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._group, name)
        if name not in ("allreduce", "reduce_scatter_single", "_reduce_scatter_base"):
            return method

        def reduced(*arguments: Any) -> Any:
            options = arguments[-1]
            kind, factor = options.reduceOp.__getstate__()
            self.sums[kind.name] += 1
            if kind != dist.ReduceOp.PREMUL_SUM:
                return method(*arguments)
            options.reduceOp = SUM
            if name == "allreduce":
                arguments[0][0].mul_(factor)
                return method(*arguments)
            return method(arguments[0], arguments[1] * factor, options)

        return reduced


def a_factor_before_the_sum_is_multiplied_once_in_the_world_group(world: World) -> None:
    """FSDP2's gradient divide factor is such a reduction."""
    found = groups_of(world, (0, 0, 1, 1), "premul")
    third = dist._make_nccl_premul_sum(1 / 3)

    def untouched(tensor: Tensor, op: Any) -> None:
        raise AssertionError("what sums on the host has no such reduction")

    for host, settings in (
        (None, {"all_reduce": "hierarchical", "reduce_scatter": "hierarchical"}),
        (None, {"all_reduce": "hierarchical", "reduce_scatter": "hierarchical", "wire": "bf16"}),
        (None, {"wire": "int8"}),
        (untouched, {"all_reduce": "host"}),
    ):
        levels = [Scaling(each) for each in (found.world, found.intra, found.inter)]
        with path_of(InnerGroups(found.layout, *levels), host, **settings) as path:
            tensor = values(world, 4096)
            total = exact_sum(found, tensor)
            path.all_reduce(tensor, third).wait()
            torch.testing.assert_close(tensor.double(), total / 3, rtol=1e-5, atol=1e-5)
            many, mine = values(world, world.size * 4096), torch.empty(4096)
            part = exact_sum(found, many).view(world.size, -1)[world.rank]
            path.reduce_scatter_single(mine, many, third).wait()
            torch.testing.assert_close(mine.double(), part / 3, rtol=1e-5, atol=1e-5)
            assert path.calls == {"all_reduce:world": 1, "reduce_scatter:world": 1}, path.calls
        assert [each.sums for each in levels] == [{"PREMUL_SUM": 2}, {}, {}], settings


def gathers_and_scatters_in_two_levels_are_those_of_the_world(world: World) -> None:
    for name, nodes in ORDERS.items():
        groups = groups_of(world, nodes, f"gather {name}")
        with path_of(groups, all_gather="hierarchical", reduce_scatter="hierarchical") as path:
            for count in COUNTS:
                source = values(world, count)
                ours, theirs = torch.empty(2, world.size * count).unbind()
                check_work(path.all_gather_single(ours, source), ours)
                group_calls.all_gather(groups.world, theirs, source).wait()
                assert torch.equal(ours, theirs), (name, count)
                many = values(world, world.size * count)
                mine, exact = torch.empty(2, count).unbind()
                check_work(path.reduce_scatter_single(mine, many, SUM), mine)
                group_calls.reduce_scatter(groups.world, exact, many, SUM).wait()
                assert torch.allclose(mine, exact, atol=1e-5), (name, count)
                path.reduce_scatter_single(mine, many, AVG).wait()
                assert torch.allclose(mine, exact / world.size, atol=1e-5), (name, count)
            assert set(path.calls) == {"all_gather:hierarchical", "reduce_scatter:hierarchical"}
        with path_of(groups, wire="bf16") as path:
            mine = torch.empty(4096)
            many = values(world, world.size * 4096)
            exact = torch.empty(4096)
            group_calls.reduce_scatter(groups.world, exact, many, SUM).wait()
            path.reduce_scatter_single(mine, many, SUM).wait()
            assert float((mine - exact).abs().max()) < 3e-2 * float(exact.abs().max())


def sums_through_the_host_are_those_of_the_group_there(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "host")
    host = GroupSum(lambda: dist.group.WORLD)  # ours: the core sums
    with path_of(groups, host, all_reduce="host", segment_bytes=4096) as path:
        works = []
        for count in COUNTS:  # several at once, in order
            tensor = values(world, count)
            total = exact_sum(groups, tensor)
            works.append((path.all_reduce(tensor, SUM), tensor, total))
        for work, tensor, total in works:
            check_work(work, tensor)
            assert torch.allclose(tensor.double(), total, atol=1e-5)
        assert path.calls == {"all_reduce:host": len(COUNTS)}


def an_error_of_the_host_sum_comes_out_of_the_wait(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "host error")

    def broken(tensor: Tensor, op: Any) -> None:
        raise RuntimeError("rank 2 has not come")

    with path_of(groups, broken, all_reduce="host") as path:
        work = path.all_reduce(values(world, 100), SUM)
        for wait in (work.wait, work.get_future().wait):
            try:
                wait()
            except RuntimeError as error:
                assert "rank 2 has not come" in str(error)
            else:
                raise AssertionError("no error")
        assert not work.is_success()


def what_is_faster_is_chosen_alike_on_all_ranks(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "auto")
    with path_of(groups, all_reduce="auto", reduce_scatter="auto") as path:
        for _ in range(2):
            tensor = torch.ones(5000)
            path.all_reduce(tensor, SUM).wait()
            assert bool((tensor == world.size).all())
        found = (path.settings.all_reduce, path.settings.all_gather, path.settings.reduce_scatter,
                 path.settings.least_bytes)  # fmt: skip
        assert "auto" not in found and found[1] == "world"
        every: list[Any] = [None] * world.size
        dist.all_gather_object(every, found)
        assert len(set(every)) == 1, every


def small_calls_and_odd_layouts_take_the_world(world: World) -> None:
    alone = groups_of(world, (0, 0, 0, 1), "odd")  # nodes of different size
    assert alone.intra is None and alone.inter is None
    with path_of(alone, all_reduce="hierarchical", all_gather="hierarchical") as path:
        tensor = torch.ones(5000)
        path.all_reduce(tensor, SUM).wait()
        assert bool((tensor == world.size).all())
        assert path.calls == {"all_reduce:world": 1}
    groups = groups_of(world, (0, 0, 1, 1), "small")
    with path_of(groups, all_reduce="hierarchical", least_bytes=1 << 20) as path:
        path.all_reduce(torch.ones(5000), SUM).wait()
        assert path.calls == {"all_reduce:world": 1}


CHECKS = (
    two_levels_give_the_sum_of_all,
    few_bytes_on_the_rail_stay_near_the_sum,
    a_factor_before_the_sum_is_multiplied_once_in_the_world_group,
    gathers_and_scatters_in_two_levels_are_those_of_the_world,
    sums_through_the_host_are_those_of_the_group_there,
    an_error_of_the_host_sum_comes_out_of_the_wait,
    what_is_faster_is_chosen_alike_on_all_ranks,
    small_calls_and_odd_layouts_take_the_world,
)

if __name__ == "__main__":
    main(CHECKS)
