"""What narrow types and views come to on the device path, after ranks_device.py in the same job of
four ranks; run by test_device.py."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muster_collectives.torch.cuda.path import DevicePath
from muster_collectives.torch.cuda.streams import GroupSum
from muster_collectives.torch.ops.verbs import VERBS, canonical
from tests.collectives.pytorch.device import ranks_device
from tests.collectives.pytorch.device.ranks_device import (
    AVG,
    MAX,
    ORDERS,
    SUM,
    exact_sum,
    groups_of,
    path_of,
    same_everywhere,
    values,
)
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
MIN, PROD = dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT
LEVELS = {"all_reduce": "hierarchical", "reduce_scatter": "hierarchical"}
EPSILON = 2.0**-11  # of float16, half a unit in the last place


def averages(path: DevicePath, world: World, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Of `mine` by all_reduce, and by reduce_scatter of it as every rank's part."""
    whole = mine.clone()
    path.all_reduce(whole, AVG).wait()
    kept, part = mine.repeat(world.size), torch.empty_like(mine)
    before = kept.clone()
    path.reduce_scatter_single(part, kept, AVG).wait()
    assert torch.equal(kept, before)  # the input of a reduce-scatter is the caller's
    return whole, part


def averages_of_halves_are_in_range_where_their_sums_are_not(world: World) -> None:
    for name, nodes in ORDERS.items():
        groups = groups_of(world, nodes, f"halves {name}")
        with path_of(groups, **LEVELS) as path:
            for count in (1, 7, 50_003):
                for least, most in ((40_000, 65_504), (-65_504, -40_000), (1, 2)):
                    mine = values(world, count).abs().clamp(0, 1) * (most - least) + least
                    mine = mine.to(torch.float16)
                    mean = exact_sum(groups, mine) / world.size
                    for found in averages(path, world, mine):
                        # two sums of two, each rounded once, and the division
                        limit = 3 * EPSILON * float(mean.abs().max())
                        off = float((found.double() - mean).abs().max())
                        assert off <= limit, (name, count, least, off)
            tiny = torch.full((100,), 2.0**-22 * (world.rank + 1), dtype=torch.float16)
            for found in averages(path, world, tiny):  # within a unit for each rank and node
                assert bool(((found.double() - 2.5 * 2.0**-22).abs() <= 2 * 2.0**-24).all()), found
            infinite = torch.full((5,), float("inf") if world.rank == 1 else 1.0).half()
            assert all(bool(each.isinf().all()) for each in averages(path, world, infinite))
            assert set(path.calls) == {"all_reduce:hierarchical", "reduce_scatter:hierarchical"}


def averages_over_a_wire_of_halves_are_in_range_too(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "wire averages")
    for wire, limit in (("fp16", 2e-3), ("bf16", 2e-2), ("int8", 2e-2)):
        with path_of(groups, wire=wire) as path:
            mine = 40_000 + 20_000 * values(world, 20_001).abs().clamp(0, 1)
            mean = exact_sum(groups, mine) / world.size
            for found in averages(path, world, mine):
                off = float(((found - mean) / mean).abs().max())
                assert off < limit, (wire, off)
            same_everywhere(world, groups, averages(path, world, mine)[0])


def parameters_can_be_reduced(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "parameters")
    with path_of(groups, **LEVELS, all_gather="hierarchical") as path:
        for dtype, count in ((torch.float32, 7), (torch.float16, 7), (torch.float16, 8)):
            parameter = torch.nn.Parameter(torch.full((count,), world.rank + 1.0, dtype=dtype))
            path.all_reduce(parameter, AVG).wait()
            assert parameter.tolist() == [2.5] * count
            assert parameter.requires_grad and parameter.is_leaf


def view_of(tensor: Tensor, world: World) -> Tensor:
    """A copy of the same numbers; on odd ranks one that says "negated"."""
    if world.rank % 2 == 0:
        return tensor.clone()
    view = torch._neg_view(-tensor)
    assert view.is_neg() and view.is_contiguous() and torch.equal(view, tensor)
    return view


def called(path: DevicePath, name: str, *arguments: Any, **settings: Any) -> Any:
    """As the group calls it: the tensors, then options."""
    verb = VERBS[name]
    options = verb.options()
    for key, value in settings.items():
        setattr(options, key, value)
    return path.call(verb, canonical(verb, (*arguments, options), {}))


def paths(world: World) -> list[tuple[str, Any, dict[str, Any]]]:
    """Name, what sums on the host, settings: every way that an all-reduce may take."""
    return [
        ("world", None, {}), ("hierarchical", None, LEVELS),
        ("host", GroupSum(lambda: dist.group.WORLD), {"all_reduce": "host"}),
    ]  # fmt: skip


def views_that_are_negated_are_reduced_as_what_they_say(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "views")
    each = [torch.tensor([3.0, -1.0, 2.0]) * (rank - 1.5) for rank in range(world.size)]
    stacked = torch.stack(each)
    for name, host, settings in paths(world):
        with path_of(groups, host, **settings) as path:
            for op, expected in (
                (SUM, stacked.sum(0)), (MIN, stacked.amin(0)), (MAX, stacked.amax(0)),
                (PROD, stacked.prod(0)),
            ):  # fmt: skip
                mine = view_of(each[world.rank], world)
                work = called(path, "allreduce", [mine], reduceOp=op)
                future = work.get_future()
                assert work.wait() is not False
                torch.testing.assert_close(mine.resolve_neg(), expected, msg=f"{name} {op}")
                assert torch.equal(future.wait()[0], mine)
                assert mine.is_neg() == (world.rank % 2 == 1)  # written where it lies
            assert set(path.calls) == {f"all_reduce:{name}"}, path.calls
            part = view_of(torch.zeros(3), world)
            many = view_of(each[world.rank].repeat(world.size), world)
            called(path, "reduce_scatter_single", part, many, reduceOp=MAX).wait()
            torch.testing.assert_close(part.resolve_neg(), stacked.amax(0), msg=name)


def views_are_moved_as_what_they_say(world: World) -> None:
    groups = groups_of(world, (0, 0, 1, 1), "moved views")
    size, rank = world.size, world.rank
    mine = torch.arange(3.0) + 10 * rank
    whole = torch.cat([torch.arange(3.0) + 10 * each for each in range(size)])
    for settings in ({}, {"all_gather": "hierarchical"}):
        with path_of(groups, **settings) as path:
            gathered = view_of(torch.zeros(3 * size), world)
            called(path, "all_gather_single", gathered, view_of(mine, world)).wait()
            assert torch.equal(gathered.resolve_neg(), whole)
    with path_of(groups) as path:
        parts = [view_of(torch.zeros(3), world) for _ in range(size)]
        called(path, "allgather", [parts], [view_of(mine, world)]).wait()
        assert torch.equal(torch.cat([part.resolve_neg() for part in parts]), whole)
        sent = view_of(mine, world)
        called(path, "broadcast", [sent], rootRank=1).wait()
        assert sent.tolist() == [10.0, 11.0, 12.0]
        exchanged = view_of(torch.zeros(size), world)
        called(
            path, "all_to_all_single", exchanged, view_of(whole[::3] + rank, world), [], []
        ).wait()
        assert exchanged.tolist() == [10.0 * rank + each for each in range(size)]
        conjugated = torch.tensor([1 + 2j]).conj() if rank else torch.tensor([1 - 2j])
        called(path, "broadcast", [conjugated], rootRank=1).wait()
        assert conjugated.tolist() == [1 - 2j]
        if rank < 2:
            got = view_of(torch.zeros(3), world)
            given = view_of(mine, world)
            works = [path.transfer("send", given, rank ^ 1, 0)]
            path.transfer("recv", got, rank ^ 1, 0).wait()
            assert torch.equal(got.resolve_neg(), torch.arange(3.0) + 10 * (rank ^ 1))
            works[0].wait()


CHECKS = (
    averages_of_halves_are_in_range_where_their_sums_are_not,
    averages_over_a_wire_of_halves_are_in_range_too,
    parameters_can_be_reduced,
    views_that_are_negated_are_reduced_as_what_they_say,
    views_are_moved_as_what_they_say,
)

if __name__ == "__main__":
    main((*ranks_device.CHECKS, *CHECKS))
