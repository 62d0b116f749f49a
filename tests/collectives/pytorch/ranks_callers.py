"""Who calls a verb, with which tensors, and whose memory it is meanwhile; after ranks_works.py."""

from __future__ import annotations

import _thread
import gc
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from muster_collectives.torch.compress import blocks
from muster_collectives.torch.group_state import Device
from tests.collectives.support.torch_ranks import World

_LIMIT_S = 60.0


def a_thread_without_python_below_a_verb_may_call_it(world: World) -> None:
    """As autograd's threads of C++ do for a GPU's gradients."""
    group = dist.group.WORLD
    value = torch.full((1000,), world.rank + 1.0)
    raised: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, raised.append
    try:
        _thread.start_new_thread(group.allreduce, ([value], dist.AllreduceOptions()))
        deadline = time.monotonic() + _LIMIT_S
        while value[-1].item() != sum(range(world.size + 1)):
            assert not raised, raised[0].exc_value
            assert time.monotonic() < deadline, "it was never summed"
            time.sleep(0.005)
    finally:
        sys.unraisablehook = before
    dist.barrier()


def lists_may_begin_with_nothing(world: World) -> None:
    size, rank = world.size, world.rank
    row = torch.arange(5.0 * size) + 100 * rank
    take = [0 if other == 0 else 5 for other in range(size)]  # rank 0 sends nothing to anybody
    give = [torch.empty(0) if rank == 0 else row[5 * to : 5 * to + 5] for to in range(size)]
    got = list(torch.full((sum(take),), -1.0).split(take))
    dist.all_to_all(got, give)
    for other in range(1, size):
        expected = torch.arange(5.0 * rank, 5.0 * rank + 5) + 100 * other
        assert torch.equal(got[other], expected), (other, got)
    tensors = [torch.empty(0), torch.ones(3), torch.ones(2)]
    dist.all_reduce_coalesced(tensors)
    assert [each.tolist() for each in tensors] == [[], [float(size)] * 3, [float(size)] * 2]


def the_default_device_and_type_of_the_program_do_not_reach_our_buffers(world: World) -> None:
    mine = torch.arange(6.0).reshape(2, 3).t() + world.rank  # not as it lies in memory
    rows = [torch.zeros(3, 2) for _ in range(world.size)]
    with torch.device("meta"):
        dist.all_gather(rows, mine)
        got = torch.zeros(2, 3, device="cpu").t()
        sent = dist.isend(mine, (world.rank + 1) % world.size)
        dist.recv(got, (world.rank - 1) % world.size)
        sent.wait()
    for rank, row in enumerate(rows):
        assert torch.equal(row, mine - world.rank + rank)
    assert torch.equal(got, rows[(world.rank - 1) % world.size])
    kernels = blocks.of_this_process()
    assert kernels is not None
    given = torch.linspace(-1, 1, 2 * blocks.BLOCK).reshape(1, -1)
    wanted = kernels.unpack(kernels.pack(given, None), given.shape[1])
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            found = kernels.unpack(kernels.pack(given, None), given.shape[1])
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype is torch.float32 and torch.equal(found, wanted)


def tensors_of_two_devices_are_refused_by_name(world: World) -> None:
    parts = [torch.zeros(2) for _ in range(world.size)]
    try:
        dist.all_gather(parts, torch.zeros(2, device="meta"))
    except ValueError as error:
        assert f"rank {world.rank}: allgather of tensors on cpu and meta" in str(error), error
    else:
        raise AssertionError("it was gathered")
    dist.barrier()


def what_inference_mode_made_is_written_later(world: World) -> None:
    with torch.inference_mode():
        parts = [torch.zeros(3) for _ in range(world.size)]
        work = dist.all_gather(parts, torch.full((3,), float(world.rank)), async_op=True)
        column = torch.zeros(3, 2)[:, 0]
        other = dist.all_reduce(column.add_(1), async_op=True)
        while not (work.is_completed() and other.is_completed()):
            time.sleep(0.005)  # so that it is not this thread that does it
        work.wait()
        other.wait()
    assert [part[0].item() for part in parts] == [*map(float, range(world.size))]
    assert column.tolist() == [float(world.size)] * 3


def a_receive_keeps_its_memory_until_it_is_over(world: World) -> None:
    if world.rank == 1:
        dist.barrier()
        dist.send(torch.ones(100_000), 0)
    elif world.rank == 0:
        target = torch.zeros(100_000)
        kept = weakref.ref(target)
        work = dist.irecv(target, 1)
        try:
            work.wait(timedelta(seconds=0.05))
        except RuntimeError as error:
            assert "rank 1" in str(error), error
        else:
            raise AssertionError("it came")
        del target, work
        gc.collect()
        assert kept() is not None, "the memory of a receive that is under way was given back"
        dist.barrier()
        deadline = time.monotonic() + _LIMIT_S
        while kept()[-1].item() != 1:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    else:
        dist.barrier()
    dist.barrier()
    if world.rank == 0:  # the next transfer looks at what is over
        dist.send(torch.ones(1), 1)
        gc.collect()
        assert kept() is None, "what is over is still kept"
    elif world.rank == 1:
        dist.recv(torch.zeros(1), 0)


def a_send_that_was_waited_for_keeps_nothing(world: World) -> None:
    if world.rank == 0:
        given = torch.ones(1 << 20)
        kept = weakref.ref(given)
        dist.send(given, 1)
        del given
        gc.collect()
        assert kept() is None, "the memory of a send that is over is still kept"
    elif world.rank == 1:
        dist.recv(torch.zeros(1 << 20), 0)


def transfers_that_were_coalesced_are_waited_for_together(world: World) -> None:
    if world.rank > 1:
        return
    got = torch.zeros(200_000)
    with _coalescing_manager(None, torch.device("cpu"), async_ops=True) as manager:
        dist.isend(torch.full((200_000,), world.rank + 1.0), 1 - world.rank)
        dist.irecv(got, 1 - world.rank)
    manager.wait()
    assert bool((got == 2.0 - world.rank).all()), "it was said to be done, and is not"


def a_barrier_does_not_wait_for_ranks_without_device_calls(world: World) -> None:
    """One rank has used its GPU (a send, say) and the others have not."""
    device: Device = dist.group.WORLD._state.device

    class Path:
        groups = None

        def call(self, *_: Any) -> None:
            raise AssertionError("a barrier of CPU ranks went to the GPU's groups")

    if world.rank == 0:
        device._path = Path()
    try:
        dist.barrier()
        dist.barrier(async_op=True).wait()
    finally:
        device._path = None


def host_sums_get_their_group_with_the_first_sum(world: World) -> None:
    from muster_collectives.torch.cuda.streams import GroupSum

    made: list[object] = []

    def make() -> Any:
        made.append(threading.current_thread())
        return dist.group.WORLD

    late = GroupSum(make)
    assert late.group is None and not made
    for _ in range(2):
        value = torch.ones(3)
        late(value, dist.ReduceOp.SUM)
        assert value.tolist() == [float(world.size)] * 3
    assert len(made) == 1 and late.group is dist.group.WORLD


CHECKS = (
    a_thread_without_python_below_a_verb_may_call_it,
    lists_may_begin_with_nothing,
    the_default_device_and_type_of_the_program_do_not_reach_our_buffers,
    tensors_of_two_devices_are_refused_by_name,
    what_inference_mode_made_is_written_later,
    a_receive_keeps_its_memory_until_it_is_over,
    a_send_that_was_waited_for_keeps_nothing,
    transfers_that_were_coalesced_are_waited_for_together,
    a_barrier_does_not_wait_for_ranks_without_device_calls,
    host_sums_get_their_group_with_the_first_sum,
)
