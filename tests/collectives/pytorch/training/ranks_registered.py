"""Registered memory: DDP's buckets and all else that is summed again and again, FSDP2's, a pool's;
then the hooks. Run by test_hooks_registered.py."""

from __future__ import annotations

import copy
import gc
import os
import resource
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.types import Path
from muster_collectives.torch import memory, stats
from muster_collectives.torch.hooks.average import average, group_or_world
from tests.collectives.pytorch.training import ranks_hooks
from tests.collectives.support.torch_ranks import Check, World, main

warnings.filterwarnings("ignore")
STEADY = 4  # sums of the same memory until it is registered
COUNT = 300_000  # float32: 1.1 MiB
CHILD_S = 60


def network(width: int = 256) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                         nn.Linear(width, 8))  # fmt: skip


def data(world: World, number: int) -> Tensor:
    seeded = torch.Generator().manual_seed(1000 * number + world.rank)
    return torch.randn(16, 64, generator=seeded)


def direct_calls() -> int:
    core = stats().core
    assert core is not None
    return core.paths[Path.DIRECT]


def ddp_of(model: nn.Module, *, as_view: bool) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=1.5, gradient_as_bucket_view=as_view)


def elsewhere(state, bucket):  # type: ignore[no-untyped-def]  # DDP would look at the types
    """Averages a copy, which is new memory each time."""
    return average(group_or_world(state), bucket.buffer().clone())


def gradients(ddp: nn.Module, batch: Tensor) -> list[Tensor]:
    ddp.zero_grad(set_to_none=False)
    ddp(batch).square().mean().backward()
    return [parameter.grad for parameter in ddp.parameters()]


def is_shared(place: int) -> bool:
    """Whether other ranks see the page there, or the next one."""
    with open("/proc/self/maps") as lines:
        places = [line.split()[0].split("-") for line in lines if "muster-adopted" in line]
    return any(int(first, 16) <= place + 4095 < int(last, 16) for first, last in places)


def summed(world: World, tensor: Tensor, times: int = STEADY + 1) -> int:
    """Sums it so many times, right each time; how many of the sums were direct."""
    before = direct_calls()
    each = torch.arange(tensor.numel()) % (29 if tensor.dtype is torch.bfloat16 else 997)  # exact
    for number in range(times):
        parts = [each + rank + number for rank in range(world.size)]
        tensor.copy_(parts[world.rank])
        dist.all_reduce(tensor)
        assert torch.equal(tensor, sum(parts).to(tensor.dtype)), number
    return direct_calls() - before


def own(count: int = COUNT, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(count, dtype=dtype)


def ddp_reduces_its_buckets_where_they_are(world: World) -> None:
    for as_view in (False, True):
        ours, plain = ddp_of(network(700), as_view=as_view), ddp_of(network(700), as_view=as_view)
        plain.register_comm_hook(None, elsewhere)
        direct = []
        for number in range(8):
            before = direct_calls()
            mine = gradients(ours, data(world, number))
            direct.append(direct_calls() - before)
            exact = gradients(plain, data(world, number))
            # DDP divides before the sum and the hook after it
            assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(mine, exact, strict=True))
        assert direct[0] == 0 and direct[-1] == direct[-2] >= 1, direct


def memory_keeps_its_address_its_content_and_its_views(world: World) -> None:
    tensor = own()
    view, place = tensor[7:1007], tensor.data_ptr()
    assert summed(world, tensor, STEADY - 1) == 0
    assert summed(world, tensor, 3) == 3
    array = tensor.numpy()
    assert tensor.data_ptr() == place == array.ctypes.data
    tensor.fill_(5)
    assert bool((view == 5).all()) and bool((array == 5).all())
    view.fill_(6)
    assert float(array[7]) == 6 and float(tensor[6]) == 5


def it_may_begin_and_end_anywhere_in_a_page_on_each_rank(world: World) -> None:
    for dtype, lead in ((torch.float32, 4), (torch.float64, 6), (torch.bfloat16, 8)):
        whole = own(2 * COUNT + 4096, dtype)
        tensor = whole[lead * (1 + 37 * world.rank) :][: COUNT * 2]
        whole.fill_(-1)
        assert summed(world, tensor) == 2, dtype
        assert bool((whole[: lead * (1 + 37 * world.rank)] == -1).all())
        assert bool((whole[lead * (1 + 37 * world.rank) + COUNT * 2 :] == -1).all())


def parts_of_it_are_summed_there_too(world: World) -> None:
    tensor = own(3 * COUNT)
    summed(world, tensor)
    assert summed(world, tensor[: 2 * COUNT], 2) == 2
    assert summed(world, tensor[COUNT + 1 :], 2) == 2  # not even aligned
    assert summed(world, tensor[COUNT : 2 * COUNT].view(torch.int32), 1) == 1
    assert summed(world, tensor[2 * COUNT - 5 :], 1) == 1


def other_sums_of_it_are_as_ever(world: World) -> None:
    tensor = own()
    summed(world, tensor)
    for number in range(3):
        tensor.fill_(world.rank + number)
        out = torch.empty(world.size * COUNT)
        dist.all_gather_into_tensor(out, tensor)
        assert [float(part[9]) for part in out.chunk(world.size)] == [
            rank + number for rank in range(world.size)
        ]
        dist.broadcast(tensor, 1)
        assert bool((tensor == 1 + number).all())
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert bool((tensor == world.size * (1 + number)).all())


def where_one_rank_cannot_register_none_does(world: World) -> None:
    tensor = own()
    if world.rank == 1:
        tensor.share_memory_()
    assert summed(world, tensor, STEADY + 3) == 0


def a_group_leaves_what_another_has_registered(world: World) -> None:
    """A part of it, which was steady before it was, is registered for the other group: nowhere."""
    outer, inner = (dist.new_group([0, other]) for other in (2, 1))
    tensor = own(3 * COUNT)
    part = tensor[COUNT : 2 * COUNT]

    def sums(what: Callable[[], Tensor], group: dist.ProcessGroup, other: int, times: int) -> None:
        for number in range(times if world.rank in (0, other) else 0):
            each = what().fill_(world.rank + number)
            dist.all_reduce(each, group=group)
            assert bool((each == other + 2 * number).all()), number

    sums(lambda: part if world.rank == 0 else own(), inner, 1, STEADY + 1)
    sums(lambda: tensor, outer, 2, STEADY + 1)
    assert is_shared(tensor.data_ptr()) == (world.rank != 1)
    sums(lambda: part, inner, 1, STEADY + 1)
    sums(lambda: tensor, outer, 2, 2)
    for group in (outer, inner):
        if world.rank in (0, 2 if group is outer else 1):
            dist.destroy_process_group(group)


@contextmanager
def no_descriptors() -> Iterator[None]:
    held = [os.open(os.devnull, os.O_RDONLY)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), before[1])
    )
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def a_rank_without_descriptors_sums_and_forks(world: World) -> None:
    late, tensor = own(), own()
    assert summed(world, tensor) == 2 and summed(world, late, STEADY - 1) == 0
    tensor.fill_(1)
    with no_descriptors():
        assert ended(in_child(lambda: bool((tensor.fill_(9) == 9).all()))) == 0
        assert bool((tensor == 1).all())
        dist.barrier()
        assert summed(world, late, 3) == 0
    assert summed(world, tensor, 1) == 1


def memory_of_files_and_arrays_stays_what_it_is(world: World) -> None:
    with tempfile.NamedTemporaryFile() as file:
        tensor = torch.from_file(file.name, shared=True, size=COUNT, dtype=torch.float32)
        assert summed(world, tensor, STEADY + 3) == 0
        tensor.fill_(3)
        assert bool((torch.from_file(file.name, size=COUNT) == 3).all())
        copied = torch.from_file(file.name, shared=False, size=COUNT, dtype=torch.float32)
        assert summed(world, copied, STEADY + 3) == 0
    given = torch.from_numpy(own().numpy())
    assert summed(world, given, STEADY + 3) == 0


def mapped_messages() -> int:
    core = stats().core
    assert core is not None
    return core.messages_mapped


def sent(world: World, tensor: Tensor, times: int = STEADY + 1) -> int:
    """Sends it round so many times, right each time; how many came that were mapped."""
    before = mapped_messages()
    room = torch.empty_like(tensor)
    each = torch.arange(tensor.numel()) % 997
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    for number in range(times):
        tensor.copy_(each + world.rank + number)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, room, left),
        ])  # fmt: skip
        for work in works:
            work.wait()
        assert torch.equal(room, (each + left + number).to(room.dtype)), number
        dist.barrier()
    return mapped_messages() - before


def what_is_sent_again_and_again_is_read_where_it_lies(world: World) -> None:
    whole = own(2 * COUNT)
    tensor = whole[4 * (1 + 37 * world.rank) :][:COUNT]
    whole.fill_(-1)
    place = tensor.data_ptr()
    assert sent(world, tensor) == 2
    assert tensor.data_ptr() == place and is_shared(place)
    assert bool((whole[: 4 * (1 + 37 * world.rank)] == -1).all())
    assert bool((whole[4 * (1 + 37 * world.rank) + COUNT :] == -1).all())
    del whole, tensor
    assert not is_shared(place)
    for _ in range(40):  # more than are kept mapped; of them some lie where others did
        assert sent(world, own(), STEADY + 1) == 2


def what_only_one_rank_sends_is_read_there_too(world: World) -> None:
    tensor, before = own(), mapped_messages()
    for number in range(STEADY + 2):
        if world.rank == 0:
            tensor.fill_(number)
            dist.send(tensor, 1)
        elif world.rank == 1:
            dist.recv(tensor, 0)
            assert bool((tensor == number).all())
    dist.barrier()
    assert mapped_messages() - before == (3 if world.rank == 1 else 0)


def what_is_sent_may_be_summed_and_the_other_way_round(world: World) -> None:
    first, then = own(), own()
    assert sent(world, first) == 2
    assert summed(world, first, 3) == 3 and sent(world, first, 2) == 2
    assert summed(world, then) == 2
    assert sent(world, then, 2) == 2 and summed(world, then, 1) == 1


def what_is_sent_stays_when_a_sum_beside_it_fails(world: World) -> None:
    group = dist.new_group([0, 1])
    tensor, room = own(2 * COUNT), own()
    other = 1 - world.rank
    if world.rank > 1:
        return
    for number in range(STEADY + 1):
        dist.all_reduce(tensor.fill_(number), group=group)
    assert is_shared(tensor.data_ptr())

    def swap(between: Callable[[], None]) -> None:
        sent = dist.isend(tensor[:COUNT], other, group=group)
        between()
        dist.recv(room, other, group=group)
        sent.wait()
        assert bool((room == 5 + other).all()), room.unique(return_counts=True)

    def fails() -> None:
        with suppress(CollectiveError):
            dist.all_reduce(tensor[COUNT : 2 * COUNT - world.rank], group=group)
            raise AssertionError("of different lengths")

    tensor.fill_(5 + world.rank)
    swap(lambda: None)  # the other has it mapped from here on
    swap(fails)
    dist.destroy_process_group(group)


def replace(tensor: Tensor) -> None:
    """Its storage has other memory now, at the same address as a rule."""
    storage = tensor.untyped_storage()
    bytes_ = storage.nbytes()
    storage.resize_(0)
    storage.resize_(bytes_)


def what_is_sent_and_is_replaced_is_noticed(world: World) -> None:
    tensor = own()
    assert sent(world, tensor) == 2
    replace(tensor)
    sent(world, tensor, 3)


def what_takes_the_place_of_moved_memory_is_sent_as_it_is(world: World) -> None:
    """Shared as well, and alike at both ends. What moves leaves shared pages on the heap, where
    nothing else is registered then, so such checks come last."""
    kept = []
    for _ in range(5):
        first = own()
        sent(world, first, STEADY)
        first.zero_()
        first.share_memory_()
        then = torch.zeros(COUNT + 5000).share_memory_()
        kept += [first, then]
        then[COUNT // 2] = world.rank + 1
        room = torch.empty(COUNT)
        left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
        for part in (then[:COUNT], then[2000:][:COUNT]):
            work = dist.isend(part, right)
            dist.recv(room, left)
            work.wait()
            assert float(room.sum()) == left + 1


def memory_that_ends_is_private_again(world: World) -> None:
    for _ in range(70):  # more than a group has room for
        tensor = own()
        assert summed(world, tensor) == 2
        place = tensor.data_ptr()
        assert is_shared(place)
        del tensor
        assert not is_shared(place)
    for each in [own() for _ in range(20)]:  # some of them lie there again
        assert summed(world, each, 1) == 0


def memory_by_request_has_room_of_its_own(world: World) -> None:
    kept = [own() for _ in range(66)]  # more than are registered
    assert [summed(world, each) for each in kept].count(2) >= 60
    region = memory.allocate(dist.group.WORLD, 1 << 20)
    assert region is not None
    region.release()


def a_model_may_go_before_the_group(world: World) -> None:
    for _ in range(3):
        ours = ddp_of(network(700), as_view=True)
        for number in range(7):
            found = gradients(ours, data(world, number))
        places = [each.data_ptr() for each in found if is_shared(each.data_ptr())]
        assert places
        del ours, found
        gc.collect()
        assert not any(map(is_shared, places))


def memory_that_is_replaced_is_noticed(world: World) -> None:
    tensor = own()
    assert summed(world, tensor) == 2
    replace(tensor)
    summed(world, tensor, 3)
    summed(world, own())


def in_child(check: Callable[[], bool]) -> int:
    """Forks a child that ends with 0 where the check holds; its pid."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_S)
        try:
            os._exit(0 if check() else 3)
        except BaseException:
            os._exit(4)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def a_child_of_a_fork_has_memory_of_its_own(world: World) -> None:
    tensor = own()
    assert summed(world, tensor) == 2
    tensor.fill_(1)
    place = tensor.data_ptr()
    ready, told = os.pipe()
    done, said = os.pipe()

    def check() -> bool:
        tensor[:1000].fill_(9)
        os.write(said, b"x")  # the parent looks, and writes
        os.read(ready, 1)
        return bool((tensor[:1000] == 9).all() and (tensor[1000:] == 1).all()) and not is_shared(
            place
        )

    pid = in_child(check)
    os.read(done, 1)
    assert bool((tensor == 1).all())
    tensor.fill_(2)
    os.write(told, b"x")
    assert ended(pid) == 0
    assert bool((tensor == 2).all()) and summed(world, tensor, 2) == 2
    for each in (ready, told, done, said):
        os.close(each)


def a_child_that_forks_has_what_its_parent_had(world: World) -> None:
    tensor = own()
    assert summed(world, tensor) == 2
    tensor.fill_(4)

    def grandchild() -> bool:
        tensor[0] = 5
        return bool((tensor[1:] == 4).all())

    assert ended(in_child(lambda: ended(in_child(grandchild)) == 0 and float(tensor[0]) == 4)) == 0
    assert summed(world, tensor, 1) == 1


def places_of_a_pool_come_back_when_their_tensors_are_gone(world: World) -> None:
    pool = memory.RegisteredPool(dist.group.WORLD, slots=2, least_bytes=4096)
    cpu = torch.device("cpu")
    held = [pool.empty((5000,), torch.float32, cpu) for _ in range(3)]
    assert (pool.registered, pool.ordinary) == (2, 1)
    place = held[0].data_ptr()
    view = held[0][10:20]
    held[0] = torch.empty(0)
    assert pool.empty((5000,), torch.float32, cpu).data_ptr() != place  # a view is still there
    del view
    again = pool.empty((10, 500), torch.float32, cpu)
    assert again.data_ptr() == place and again.shape == (10, 500)
    again.fill_(world.rank + 1.0)
    before = direct_calls()
    dist.all_reduce(again)
    assert direct_calls() == before + 1
    assert bool((again == world.size * (world.size + 1) / 2).all())
    try:
        pool.close()
    except RuntimeError as error:
        assert "still lie" in str(error)
    else:
        raise AssertionError("closed under a tensor")
    del again, held
    gc.collect()
    pool.close()


def fsdp_gathers_and_reduces_in_registered_memory(world: World) -> None:
    from muster_collectives.torch.fsdp import use_registered_memory  # newer torch only

    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    made = {}
    for name in ("plain", "registered"):
        model = copy.deepcopy(network())
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        made[name] = fully_shard(model, mesh=mesh)
    pool = use_registered_memory(made["registered"])
    optimizers = {name: torch.optim.SGD(each.parameters(), lr=0.1) for name, each in made.items()}
    for number in range(4):
        losses = {}
        for name, model in made.items():
            before = direct_calls()
            loss = model(data(world, number)).square().mean()
            loss.backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            losses[name] = float(loss.detach())
            assert (direct_calls() > before) == (name == "registered")
        assert losses["plain"] == losses["registered"], losses
    pairs = zip(made["plain"].parameters(), made["registered"].parameters(), strict=True)
    for a, b in pairs:
        assert torch.equal(a.to_local(), b.to_local())
    assert pool.registered >= 4 * 3 and pool.ordinary < pool.registered, vars(pool)


def fsdp_without_shards_is_refused(world: World) -> None:
    from muster_collectives.torch.fsdp import use_registered_memory  # newer torch only

    del world
    try:
        use_registered_memory(network())
    except ValueError as error:
        assert "fully_shard" in str(error)
    else:
        raise AssertionError("nothing was sharded")


CHECKS = (
    ddp_reduces_its_buckets_where_they_are,
    memory_keeps_its_address_its_content_and_its_views,
    it_may_begin_and_end_anywhere_in_a_page_on_each_rank,
    parts_of_it_are_summed_there_too,
    other_sums_of_it_are_as_ever,
    where_one_rank_cannot_register_none_does,
    a_group_leaves_what_another_has_registered,
    a_rank_without_descriptors_sums_and_forks,
    memory_of_files_and_arrays_stays_what_it_is,
    what_is_sent_again_and_again_is_read_where_it_lies,
    what_only_one_rank_sends_is_read_there_too,
    what_is_sent_may_be_summed_and_the_other_way_round,
    what_is_sent_stays_when_a_sum_beside_it_fails,
    memory_that_ends_is_private_again,
    memory_by_request_has_room_of_its_own,
    a_model_may_go_before_the_group,
    a_child_of_a_fork_has_memory_of_its_own,
    a_child_that_forks_has_what_its_parent_had,
    places_of_a_pool_come_back_when_their_tensors_are_gone,
    fsdp_gathers_and_reduces_in_registered_memory,
    fsdp_without_shards_is_refused,
    what_is_sent_and_is_replaced_is_noticed,
    memory_that_is_replaced_is_noticed,
    what_takes_the_place_of_moved_memory_is_sent_as_it_is,
)


def hooks_start_again_on_gloo(world: World) -> None:
    world.drop()
    world.store = dist.PrefixStore("again", world.store)
    world.start("gloo")


def on_gloo(check: Check) -> Check:
    def again(world: World) -> None:
        check(world)

    again.__name__ = f"{check.__name__}_on_gloo"
    return again


if __name__ == "__main__":
    hooks = ranks_hooks.CHECKS
    main((*CHECKS, *hooks, hooks_start_again_on_gloo, *(on_gloo(check) for check in hooks)))
