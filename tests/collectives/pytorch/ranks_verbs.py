"""Each verb of torch.distributed on our backend against gloo, in one job; with ranks_works.py."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.types import Verb
from muster_collectives.torch import stats
from muster_collectives.torch.ops.lowered import LoweredOp
from tests.collectives.support.torch_ranks import World

warnings.filterwarnings("ignore")
SUM, AVG, MIN, MAX, PROD = (
    dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX,
    dist.ReduceOp.PRODUCT,
)  # fmt: skip
BITS = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
OTHERS = (torch.bool, torch.int16, torch.complex64)


def values(world: World, dtype: torch.dtype, *shape: int, salt: int = 0) -> torch.Tensor:
    """Small whole numbers of this rank, exact in every dtype."""
    seeded = torch.Generator().manual_seed(97 * world.rank + salt)
    return torch.randint(0, 3, shape, generator=seeded).to(dtype)


def same(ours: Any, theirs: Any, what: object = "") -> None:
    assert torch.equal(ours, theirs), f"{what}: {ours} is not {theirs}"


def core_calls() -> int:
    found = stats()
    return 0 if found.core is None else sum(found.core.calls.values())


@contextmanager
def by_the_core(verb: Verb, calls: int = 1) -> Iterator[None]:
    """What is called inside comes to so many calls of the core, and to none of gloo."""
    before = stats()
    yield
    after = stats()
    made = after.calls(verb) - before.calls(verb)
    assert (made, after.fallback) == (calls, before.fallback), (verb.name, made, after.fallback)


def all_reduce_of_every_dtype_and_operation_is_what_gloo_gives(world: World) -> None:
    for dtype, op in itertools.product((*FLOATS, *INTEGERS), (SUM, MIN, MAX, PROD, *BITS)):
        if dtype.is_floating_point and op in BITS:
            continue
        for length in (0, 1, 17, 1000):
            ours = values(world, dtype, length)
            theirs = ours.clone()
            dist.all_reduce(ours, op)
            dist.all_reduce(theirs, op, group=world.gloo)
            same(ours, theirs, (dtype, op, length))


def averages_are_the_sum_divided(world: World) -> None:
    for dtype in FLOATS:
        ours = values(world, dtype, 100)
        total = ours.to(torch.float64, copy=True)
        dist.all_reduce(total, group=world.gloo)
        dist.all_reduce(ours, AVG)
        torch.testing.assert_close(ours, (total / world.size).to(dtype))


def bools_stay_bools(world: World) -> None:
    mine = torch.tensor([True, False, world.rank == 0, world.rank > 0])
    for op, expected in (
        (SUM, [True, False, True, True]), (PROD, [True, False, False, False]),
        (MAX, [True, False, True, True]), (MIN, [True, False, False, False]),
        (dist.ReduceOp.BOR, [True, False, True, True]),
        (dist.ReduceOp.BAND, [True, False, False, False]),
    ):  # fmt: skip
        ours = mine.clone()
        dist.all_reduce(ours, op)
        assert ours.tolist() == expected, (op, ours)
        # a bool whose byte is neither 0 nor 1 would not be equal to itself negated twice
        assert ours.view(torch.uint8).max() <= 1


def complex_numbers_are_summed_and_moved(world: World) -> None:
    ours = torch.complex(values(world, torch.float32, 9), values(world, torch.float32, 9, salt=1))
    theirs = ours.clone()
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=world.gloo)
    same(ours, theirs)
    parts = [torch.zeros(9, dtype=torch.complex64) for _ in range(world.size)]
    dist.all_gather(parts, ours * world.rank)
    same(parts[world.size - 1], theirs * (world.size - 1))


def what_the_core_does_not_do_goes_to_gloo_and_is_counted(world: World) -> None:
    before = stats().fallback.get("allreduce", 0)
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[world.rank, 5]]), torch.tensor([1.0, 2.0]), (8,)
    )
    dist.all_reduce(sparse)
    dense = sparse.to_dense()
    assert dense[5] == 2.0 * world.size
    assert dense[: world.size].sum() == world.size
    assert stats().fallback.get("allreduce", 0) == before + 1
    for op, dtype in ((AVG, torch.int32), (SUM, torch.int16)):
        try:
            dist.all_reduce(torch.ones(2, dtype=dtype), op)
        except (RuntimeError, ValueError):
            continue
        # where gloo of a later torch has it, fine


def any_dtype_can_be_moved(world: World) -> None:
    for dtype in (*FLOATS, *INTEGERS, *OTHERS):
        ours = values(world, dtype, 7)
        dist.broadcast(ours, src=world.size - 1)
        parts = [torch.empty_like(ours) for _ in range(world.size)]
        dist.all_gather(parts, ours)
        for part in parts:
            same(part, ours, dtype)


def tensors_that_are_not_contiguous_are_read_and_written_in_place(world: World) -> None:
    base = values(world, torch.float32, 6, 8)
    ours, theirs = base.clone().t(), base.clone().t()
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=world.gloo)
    same(ours, theirs)
    column = base.clone()[:, 3]
    dist.broadcast(column, src=0)
    expected = base.clone()[:, 3].contiguous()
    dist.broadcast(expected, src=0, group=world.gloo)
    same(column, expected)
    out = torch.zeros(world.size * 6, 16)[:, ::2]
    dist.all_gather_into_tensor(out, base)
    reference = torch.zeros(world.size * 6, 8)
    dist.all_gather_into_tensor(reference, base, group=world.gloo)
    same(out.contiguous(), reference)
    part = torch.zeros(12, 8)[::2]
    dist.reduce_scatter_tensor(part, out)
    same(part.contiguous(), reference[world.rank * 6 : world.rank * 6 + 6] * world.size)


def views_that_are_negated_are_reduced_as_what_they_say(world: World) -> None:
    # gloo takes the numbers as they lie there, so it is no reference
    each = [torch.tensor([3.0, -1.0, 2.0]) * (rank + 1) for rank in range(world.size)]
    stacked = -torch.stack(each)
    for op, expected in (
        (SUM, stacked.sum(0)), (AVG, stacked.mean(0)), (MIN, stacked.amin(0)),
        (MAX, stacked.amax(0)), (PROD, stacked.prod(0)),
    ):  # fmt: skip
        for async_op in (False, True):
            view = torch._neg_view(each[world.rank].clone())
            assert view.is_neg() and view.is_contiguous()
            with by_the_core(Verb.ALL_REDUCE):
                work = dist.all_reduce(view, op, async_op=async_op)
                if work is not None:
                    work.wait()
            torch.testing.assert_close(view.resolve_neg(), expected, msg=f"{op} {async_op}")
            assert view.is_neg()  # written in place: the tensor behind it has the negatives
    one = torch.complex(torch.zeros(1), torch.tensor([world.rank + 1.0])).conj().imag
    assert one.is_neg()
    dist.all_reduce(one, MAX)
    assert one.tolist() == [-1.0]


def parameters_that_need_gradients_can_be_written(world: World) -> None:
    parameter = torch.nn.Parameter(torch.full((5,), float(world.rank + 1)))
    dist.broadcast(parameter, src=0)
    dist.all_reduce(parameter)
    assert parameter.tolist() == [float(world.size)] * 5
    turned = torch.nn.Parameter(torch.full((2, 3), float(world.rank)).t())
    dist.all_reduce(turned)
    assert turned[0, 0].item() == sum(range(world.size))


def lists_are_gathered_scattered_and_exchanged_as_gloo_does(world: World) -> None:
    size, rank = world.size, world.rank
    mine = values(world, torch.float32, 3, 5)
    for root in (0, size - 1):
        for group in (None, world.gloo):
            reduced = mine.clone()
            dist.reduce(reduced, root, group=group)
            parts = [torch.zeros(3, 5) for _ in range(size)] if rank == root else None
            dist.gather(mine, parts, root, group=group)
            out = torch.zeros(3, 5)
            dist.scatter(out, [mine + each for each in range(size)] if rank == root else None,
                         root, group=group)  # fmt: skip
            found = [reduced if rank == root else mine, out, *(parts or [])]
            if group is None:
                ours = found
        for a, b in zip(ours, found, strict=True):
            same(a, b, root)
    for async_op in (False, True):
        outs = [torch.zeros(3, 5) for _ in range(size)]
        ins = [mine * (each + 1) for each in range(size)]
        work = dist.all_to_all(outs, ins, async_op=async_op)
        if async_op:
            work.wait()
        gathered = [torch.zeros(3, 5) for _ in range(size)]
        dist.all_gather(gathered, mine, group=world.gloo)
        for other in range(size):
            same(outs[other], gathered[other] * (rank + 1))
    total = torch.zeros(3, 5)
    dist.reduce_scatter(total, ins)
    expected = sum(gathered[1:], gathered[0]) * (rank + 1)
    same(total, expected)


def entries_of_a_list_may_overlap_one_another_and_what_is_sent(world: World) -> None:
    """Nobody else gets what is written for it, and nothing is written before it has been sent."""
    size, rank = world.size, world.rank
    other = size - 1
    for count in (4, 300_000):
        parts = [torch.full((count,), 10.0 + each) for each in range(size)]
        into = parts[other] if rank == 0 else torch.zeros(count)
        dist.scatter(into, parts if rank == 0 else None, 0)
        assert into.tolist() == [10.0 + rank] * count
        mine = torch.full((count,), float(rank))
        room = torch.zeros(count)
        into_list = [room] * size if rank == 0 else [torch.zeros(count) for _ in range(size)]
        dist.all_gather(into_list, mine)
        if rank:
            assert [each[0] for each in into_list] == [*range(size)]
        parts[other] = mine
        dist.gather(mine, parts if rank == 0 else None, 0)
        if rank == 0:
            assert [each.tolist() for each in parts] == [[float(r)] * count for r in range(size)]
    # between nodes blocks are sent from where others come to
    plan, apart, beside = LoweredOp(), [torch.zeros(4) for _ in range(3)], torch.zeros(4)
    for tensors, read, is_staged in (
        (apart, beside, False), (apart, apart[1], False), (apart, apart[0], True),
        ([apart[0]] * 3, beside, True), (apart, apart[1][1:], True),
    ):  # fmt: skip
        row, blocks = plan.row_or_blocks(plan.target, tensors, 1, read)
        assert (blocks is None) is is_staged
        assert row not in (each.data_ptr() for each in apart)


def lists_of_different_sizes_are_gathered_and_scattered(world: World) -> None:
    sizes = [each + 1 for each in range(world.size)]
    mine = torch.full((sizes[world.rank],), float(world.rank))
    parts = [torch.zeros(each) for each in sizes]
    dist.all_gather(parts, mine)
    assert [part.tolist() for part in parts] == [
        [float(rank)] * length for rank, length in enumerate(sizes)
    ]
    total = torch.zeros(sizes[world.rank])
    dist.reduce_scatter(total, [torch.ones(each) for each in sizes])
    assert total.tolist() == [float(world.size)] * sizes[world.rank]


def exchanges_have_even_uneven_and_empty_parts(world: World) -> None:
    size, rank = world.size, world.rank
    even = torch.arange(size * 2.0) + 100 * rank
    out = torch.zeros(size * 2)
    dist.all_to_all_single(out, even)
    assert out.tolist() == [
        100.0 * other + 2 * rank + each for other in range(size) for each in range(2)
    ]
    # rank r sends to rank d (r + d) % 3 rows
    give = [(rank + other) % 3 for other in range(size)]
    take = [(other + rank) % 3 for other in range(size)]
    rows = torch.arange(float(sum(give)))[:, None].expand(-1, 2) + 10 * rank
    got = torch.full((sum(take), 2), -1.0)
    dist.all_to_all_single(got, rows, take, give)
    expected = []
    for other in range(size):
        begin = sum((other + each) % 3 for each in range(rank))
        expected += [10.0 * other + begin + each for each in range(take[other])]
    assert got[:, 0].tolist() == expected


def both_spellings_of_a_verb_are_one(world: World) -> None:
    group, size, rank = dist.group.WORLD, world.size, world.rank
    mine = torch.full((4,), float(rank + 1))
    whole = torch.cat([torch.full((4,), float(each + 1)) for each in range(size)])
    for spelling in ("all_gather_single", "_allgather_base"):
        out = torch.zeros(4 * size)
        with by_the_core(Verb.ALL_GATHER):
            getattr(group, spelling)(out, mine, dist.distributed_c10d.AllgatherOptions()).wait()
        same(out, whole, spelling)
    for spelling in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [torch.zeros(4 * size), torch.zeros(8 * size)]
        with by_the_core(Verb.ALL_GATHER, 2):
            getattr(group, spelling)(outs, [mine, mine.repeat(2)]).wait()
        same(outs[0], whole, spelling)
        same(outs[1], whole.view(size, 4).repeat(1, 2).view(-1), spelling)
    options = dist.ReduceScatterOptions()
    for spelling in ("reduce_scatter_single", "_reduce_scatter_base"):
        out = torch.zeros(4)
        with by_the_core(Verb.REDUCE_SCATTER):
            getattr(group, spelling)(out, whole, options).wait()
        same(out, mine * size, spelling)
    for spelling in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        outs = [torch.zeros(4), torch.zeros(4)]
        with by_the_core(Verb.REDUCE_SCATTER, 2):
            getattr(group, spelling)(outs, [whole, whole * 2], options).wait()
        same(outs[0], mine * size, spelling)
        same(outs[1], mine * size * 2, spelling)
    for spelling in ("all_to_all_single", "alltoall_base"):
        out = torch.zeros(size)
        given = torch.full((size,), float(rank))
        with by_the_core(Verb.ALL_TO_ALL):
            getattr(group, spelling)(out, given, [], [], dist.AllToAllOptions()).wait()
        assert out.tolist() == [float(each) for each in range(size)]
    # the short forms, without options
    short = mine.clone()
    with by_the_core(Verb.ALL_REDUCE):
        group.allreduce(short, SUM).wait()
    same(short, torch.full((4,), float(sum(range(1, size + 1)))))
    with by_the_core(Verb.BROADCAST):
        group.broadcast(short, 0).wait()
    with by_the_core(Verb.BARRIER):
        group.barrier().wait()
    out_lists = [[torch.zeros(4), torch.zeros(2)] for _ in range(size)]
    with by_the_core(Verb.ALL_GATHER, 2):
        group.allgather_coalesced(out_lists, [mine, mine[:2].clone()]).wait()
    same(out_lists[size - 1][0], torch.full((4,), float(size)))
    same(out_lists[size - 1][1], torch.full((2,), float(size)))


def coalesced_sums_are_the_sums(world: World) -> None:
    for many in ([3, 5, 1, 0, 7], [3, 70_000, 5, 200_000]):
        ours = [values(world, torch.float32, each, salt=each) for each in many]
        ours.append(values(world, torch.int64, 4))
        theirs = [each.clone() for each in ours]
        before = core_calls()
        group = dist.group.WORLD
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = SUM
        group.allreduce_coalesced(ours, options).wait()
        spent = core_calls() - before
        assert spent == 2 + sum(each > 16384 for each in many), spent
        for a, b in zip(ours, theirs, strict=True):
            dist.all_reduce(b, group=world.gloo)
            same(a, b)
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as many_at_once:
        x, y = torch.ones(3), torch.ones(4)
        dist.all_reduce(x)
        dist.all_reduce(y)
    many_at_once.wait()
    assert x.tolist() == [world.size] * 3
    assert y.tolist() == [world.size] * 4
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(x, 0)


CHECKS = (
    all_reduce_of_every_dtype_and_operation_is_what_gloo_gives,
    averages_are_the_sum_divided,
    bools_stay_bools,
    complex_numbers_are_summed_and_moved,
    what_the_core_does_not_do_goes_to_gloo_and_is_counted,
    any_dtype_can_be_moved,
    tensors_that_are_not_contiguous_are_read_and_written_in_place,
    views_that_are_negated_are_reduced_as_what_they_say,
    parameters_that_need_gradients_can_be_written,
    lists_are_gathered_scattered_and_exchanged_as_gloo_does,
    entries_of_a_list_may_overlap_one_another_and_what_is_sent,
    lists_of_different_sizes_are_gathered_and_scattered,
    exchanges_have_even_uneven_and_empty_parts,
    both_spellings_of_a_verb_are_one,
    coalesced_sums_are_the_sums,
)
