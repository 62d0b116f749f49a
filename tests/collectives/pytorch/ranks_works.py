"""Works, transfers, objects, sub-groups and functional collectives, after the verbs of
ranks_verbs.py in the same job; run by test_verbs.py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from muster_collectives.runtime.errors import MismatchError, UsageError
from muster_collectives.runtime.types import DType, Path, Verb
from muster_collectives.torch import stats
from tests.collectives.pytorch import ranks_callers, ranks_verbs
from tests.collectives.pytorch.ranks_verbs import core_calls, same
from tests.collectives.support.torch_ranks import World, main
from tests.support.waiting import wait_until

warnings.filterwarnings("ignore")


def asynchronous_works_say_when_they_are_done(world: World) -> None:
    tensors = [torch.full((1000,), float(each)) for each in range(8)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    for number, each in enumerate(tensors):
        assert each[0] == number * world.size
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    got = work.get_future().then(lambda done: done.value()[0] * 2).wait()
    assert got.tolist() == [2.0 * world.size] * 4
    assert work.result()[0] is x
    # an operation that is begun and not waited for goes on while its rank does something else
    y = torch.ones(4)
    if world.rank == 0:
        work = dist.all_reduce(y, async_op=True)
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        if world.rank == 1:
            dist.recv(torch.ones(1), 0)
        dist.all_reduce(y)
    assert y.tolist() == [world.size] * 4


def a_callback_may_use_the_group_again(world: World) -> None:
    x, y = torch.ones(4), torch.ones(4)

    def again(done: Any) -> Any:
        dist.all_reduce(y, async_op=True).get_future().wait()
        return done.value()[0] + y

    got = dist.all_reduce(x, async_op=True).get_future().then(again).wait()
    assert got.tolist() == [2.0 * world.size] * 4


def sends_and_receives_meet_by_tag(world: World) -> None:
    size, rank = world.size, world.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for length in (0, 1, 1000, 300_000):
        got = torch.empty(length)
        ops = [
            dist.P2POp(dist.isend, torch.full((length,), float(rank)), right),
            dist.P2POp(dist.irecv, got, left),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(got, torch.full((length,), float(left)))
    a, b = torch.zeros(2), torch.zeros(2)
    works = [dist.isend(torch.full((2,), 1.0), right, tag=1),
             dist.isend(torch.full((2,), 2.0), right, tag=2)]  # fmt: skip
    dist.recv(b, left, tag=2)
    dist.recv(a, left, tag=1)
    assert (a[0], b[0]) == (1.0, 2.0)
    for work in works:
        work.wait()
    grid = torch.zeros(4, 6)
    sent = dist.isend(torch.arange(12.0).view(4, 3), right)
    dist.recv(grid[:, ::2], left)
    sent.wait()
    same(grid[:, ::2].contiguous(), torch.arange(12.0).view(4, 3))
    if rank == 0:
        found = set()
        for _ in range(size - 1):
            one = torch.zeros(1)
            source = dist.recv(one, tag=9)
            assert one.item() == source
            found.add(source)
        assert found == set(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0, tag=9)
    objects: list[Any] = [{"from": left, "size": size}] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(objects, 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects[0]["size"] == size


def a_transfer_that_has_ended_is_known_without_a_wait(world: World) -> None:
    """Who only asks is_completed has what came, and hears of a failure."""
    if world.rank == 0:
        for tag, length in enumerate((8, 8, 16)):
            dist.send(torch.ones(length), 1, tag=tag)
    elif world.rank == 1:
        grid = torch.zeros(4, 8)
        wholes = (torch.zeros(4), torch.zeros(16), grid[:, ::2])  # too short, too long, strided
        works = [dist.irecv(whole, 0, tag=tag) for tag, whole in enumerate(wholes)]
        wait_until(lambda: all(work.is_completed() for work in works), 60.0, "all have ended")
        for work in works[:2]:
            assert not work.is_success() and isinstance(work.exception(), MismatchError)
        assert works[2].is_success() and works[2].exception() is None
        same(grid[:, ::2].contiguous(), torch.ones(4, 4))
    dist.barrier()


def objects_travel(world: World) -> None:
    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, {"rank": world.rank, "text": "x" * (10 + 100 * world.rank)})
    assert [each["rank"] for each in found] == list(range(world.size))
    one: list[Any] = [("first", 1)] if world.rank == 0 else [None]
    dist.broadcast_object_list(one, 0)
    assert one == [("first", 1)]
    gathered: list[Any] | None = [None] * world.size if world.rank == 0 else None
    dist.gather_object(world.rank, gathered, 0)
    assert gathered in (None, list(range(world.size)))
    out: list[Any] = [None]
    dist.scatter_object_list(out, [10 * each for each in range(world.size)], 0)
    assert out == [10 * world.rank]


def sub_groups_are_groups(world: World) -> None:
    evens = dist.new_group(range(0, world.size, 2))
    tail = dist.new_group(range(1, world.size))
    ours = torch.ones(10)
    if world.rank % 2 == 0:
        dist.all_reduce(ours, group=evens)
        assert ours[0] == len(range(0, world.size, 2))
    if world.rank > 0:
        dist.all_reduce(ours, group=tail)
        parts = [torch.zeros(1) for _ in range(world.size - 1)]
        dist.all_gather(parts, torch.tensor([float(world.rank)]), group=tail)
        assert [part.item() for part in parts] == list(range(1, world.size))
        dist.broadcast(ours, src=world.size - 1, group=tail)
        dist.barrier(group=tail)
    assert dist.get_backend(evens if world.rank % 2 == 0 else tail) == dist.get_backend()
    mine, every = dist.new_subgroups(1)
    dist.all_reduce(ours, group=mine)
    assert len(every) == world.size
    local = dist.new_group([0, 1], use_local_synchronization=True) if world.rank < 2 else None
    if local is not None:
        one = torch.ones(1)
        dist.all_reduce(one, group=local)
        assert one.item() == 2
        dist.destroy_process_group(local)
    dist.barrier()


def _functional(world: World, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch.distributed._functional_collectives as functional

    def every(value: torch.Tensor) -> torch.Tensor:
        a = functional.all_reduce(value, "sum", name)
        b = functional.all_gather_tensor(value, 0, name).sum()
        c = functional.reduce_scatter_tensor(value.repeat(world.size), "sum", 0, name)
        d = functional.all_to_all_single(value.repeat(world.size), None, None, name).sum()
        e = functional.broadcast(value, 0, name)
        return a + b + c + d + e

    return every


def functional_collectives_work(world: World) -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    x = torch.full((4,), float(world.rank + 1))
    total = sum(range(1, world.size + 1))
    expected = torch.full((4,), 10.0 * total + 1.0)
    same(_functional(world, group.group_name)(x) + 0, expected)
    same(functional.all_reduce(x, "avg", group) + 0, torch.full((4,), total / world.size))
    # what a functional collective gave may go into another that is not functional
    pending = functional.all_reduce(x, "sum", group)
    dist.all_reduce(pending)
    same(pending + 0, torch.full((4,), float(total * world.size)))


def functional_collectives_can_be_compiled(world: World) -> None:
    every = _functional(world, dist.group.WORLD.group_name)
    x = torch.full((4,), float(world.rank + 1))
    before = core_calls()
    got = torch.compile(every, backend="aot_eager", fullgraph=True)(x) + 0
    same(got, torch.full((4,), 10.0 * sum(range(1, world.size + 1)) + 1.0))
    assert core_calls() - before == 5


def the_fast_path_is_taken(world: World) -> None:
    small, large = torch.ones(256), torch.ones(1 << 20)
    before = stats()
    for _ in range(10):
        dist.all_reduce(small)
    for _ in range(2):
        dist.all_reduce(large)
    dist.all_gather_into_tensor(torch.empty(world.size * 256), small)
    part = torch.empty(256 // world.size)
    dist.reduce_scatter_tensor(part, small[: part.numel() * world.size])
    dist.barrier()
    after = stats()
    assert after.fallback == before.fallback
    assert after.calls(Verb.ALL_REDUCE) - before.calls(Verb.ALL_REDUCE) == 12
    assert after.calls(Verb.ALL_GATHER) - before.calls(Verb.ALL_GATHER) == 1
    assert after.calls(Verb.REDUCE_SCATTER) - before.calls(Verb.REDUCE_SCATTER) == 1
    assert after.took(Path.ONE_SHOT) - before.took(Path.ONE_SHOT) >= 10
    assert after.took(Path.STAGED) - before.took(Path.STAGED) >= 2


def wrong_calls_are_errors_of_the_caller_alone(world: World) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(4)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(4)),
        lambda: dist.all_to_all_single(torch.zeros(9), torch.zeros(9), [1] * world.size, None),
        lambda: dist.all_gather([torch.zeros(2)], torch.zeros(2)),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except (ValueError, RuntimeError):
            continue
        raise AssertionError(f"call {number} did not raise")
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == world.size
    nowhere, room = [1] * world.size, torch.zeros(world.size)
    try:
        dist.group.WORLD.communicator.run(
            Verb.ALL_TO_ALL, source=0, target=room.data_ptr(), count=0, dtype=DType.F32,
            in_counts=nowhere, out_counts=nowhere,
        )  # fmt: skip
    except UsageError:
        dist.barrier()
    else:
        raise AssertionError("what lies nowhere was sent")


def identical_bits_on_all_ranks(world: World) -> None:
    x = torch.randn(100_003, generator=torch.Generator().manual_seed(world.rank))
    dist.all_reduce(x)
    copies = [torch.empty_like(x) for _ in range(world.size)]
    dist.all_gather(copies, x, group=world.gloo)
    assert all(torch.equal(copy, x) for copy in copies)


def the_group_tells_who_it_is(world: World) -> None:
    group = dist.group.WORLD
    assert (group.rank(), group.size()) == (world.rank, world.size)
    assert dist.get_backend() == os.environ["CHECKS_BACKEND"]
    assert group.name() == "muster"
    group.monitored_barrier()
    dist.barrier(device_ids=[0])
    work = dist.barrier(async_op=True)
    work.wait()


CHECKS = (
    asynchronous_works_say_when_they_are_done,
    a_callback_may_use_the_group_again,
    sends_and_receives_meet_by_tag,
    a_transfer_that_has_ended_is_known_without_a_wait,
    objects_travel,
    sub_groups_are_groups,
    functional_collectives_work,
    functional_collectives_can_be_compiled,
    the_fast_path_is_taken,
    wrong_calls_are_errors_of_the_caller_alone,
    identical_bits_on_all_ranks,
    the_group_tells_who_it_is,
)

if __name__ == "__main__":
    main((*ranks_verbs.CHECKS, *CHECKS, *ranks_callers.CHECKS))
