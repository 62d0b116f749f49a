"""What one rank on one GPU can prove of the group "muster"; run by test_gpu.py. Without a GPU all
that is not of streams runs on the processor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CYCLES = 20_000_000  # some 10 ms of a busy stream
COUNT, WIDTH, TIMES = 1_000_000, 256, 20


def _model() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers).to(DEVICE)


def _losses(model: Callable[[Tensor], Tensor], parameters: Iterator[nn.Parameter]) -> list[float]:
    optimizer = torch.optim.SGD(parameters, 0.01)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(8, WIDTH, device=DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def _alone() -> list[float]:
    model = _model()
    return _losses(model, model.parameters())


def _require_same(losses: list[float]) -> None:
    torch.testing.assert_close(losses, _alone())
    assert losses[2] < losses[0]


@contextmanager
def _busy() -> Iterator[None]:
    """The stream has 10 ms of work before what comes in the block."""
    if DEVICE == "cuda":
        torch.cuda._sleep(CYCLES)
    yield


def a_batch_of_sends_and_receives_goes_to_nccl_as_one(world: World) -> None:
    """To itself: NCCL has no second rank on one GPU, and a send to oneself cannot end alone."""
    for count in (10, 50 * COUNT if DEVICE == "cuda" else COUNT):  # beyond what NCCL buffers
        given = torch.arange(float(count), device=DEVICE)
        with _busy():
            given += 1  # still to come when the batch is asked for
        got = [torch.empty_like(given) for _ in range(2)]
        sevens = torch.full_like(given, 7)
        ops = [dist.P2POp(dist.isend, given, 0), dist.P2POp(dist.irecv, got[0], 0)]
        ops += [dist.P2POp(dist.isend, sevens, 0), dist.P2POp(dist.irecv, got[1], 0)]
        works = dist.batch_isend_irecv(ops)
        assert len(works) == len(ops)
        for work in works:
            work.wait()
        assert torch.equal(got[0], given) and torch.equal(got[1], sevens)


def ddp_trains_there(world: World) -> None:
    _ddp(lambda model: model)


def a_compiled_model_trains_there(world: World) -> None:
    _ddp(torch.compile)


def _ddp(changed: Callable[[nn.Module], nn.Module]) -> None:
    devices = [0] if DEVICE == "cuda" else None
    ddp = DistributedDataParallel(_model(), device_ids=devices, bucket_cap_mb=1)
    _require_same(_losses(changed(ddp), ddp.parameters()))


def fully_sharded_parameters_train_there(world: World) -> None:
    model = _model()
    mesh = init_device_mesh(DEVICE, (1,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    _require_same(_losses(model, model.parameters()))


def a_split_model_trains_there(world: World) -> None:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_model(), init_device_mesh(DEVICE, (1,)), plan)
    _require_same(_losses(model, model.parameters()))


def a_wait_and_a_future_come_after_the_stream(world: World) -> None:
    """Of a tensor that is being written when it is given, and whose memory is free at once."""
    for asked in ("wait", "future"):
        totals = []
        for number in range(5):
            given = torch.zeros(COUNT, device=DEVICE)
            with _busy():
                given += number
            total = torch.empty(COUNT, device=DEVICE)
            work = dist.all_gather_into_tensor(total, given, async_op=True)
            del given
            torch.full((COUNT,), -1.0, device=DEVICE)  # takes the memory, if it is free
            if asked == "wait":
                work.wait()
            else:
                work.get_future().wait()
            totals.append(total.sum())
        assert [float(each) for each in totals] == [number * float(COUNT) for number in range(5)]


def a_call_is_captured_in_a_graph(world: World) -> None:
    if DEVICE == "cpu":
        return
    total = torch.ones(COUNT, device=DEVICE)
    dist.all_reduce(total)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.mul_(2)
        dist.all_reduce(total)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert float(total[0]) == 8.0


def an_abort_ends_what_runs_and_a_new_group_works(world: World) -> None:
    total = torch.ones(COUNT, device=DEVICE)
    with _busy():
        work = dist.all_reduce(total, async_op=True)
    dist.group.WORLD.abort()
    del work
    world.drop()
    world.start()
    dist.all_reduce(total)


def groups_are_made_and_destroyed_many_times(world: World) -> None:
    for _ in range(TIMES):
        world.drop()
        world.start()
        total = torch.ones(10, device=DEVICE)
        dist.all_reduce(total)
        dist.barrier()
        assert float(total.sum()) == 10.0


def a_device_that_is_named_is_the_one_that_is_used(world: World) -> None:
    world.drop()
    device = torch.device("cuda", 0) if DEVICE == "cuda" else None
    dist.init_process_group(
        world.backend, store=world.store, rank=world.rank, world_size=world.size, device_id=device
    )
    total = torch.ones(10, device=DEVICE)
    dist.all_reduce(total)
    dist.all_reduce(torch.ones(10))
    part = dist.new_group([0])
    dist.all_reduce(total, group=part)
    assert float(total.sum()) == 10.0
    if device is None:
        return
    whole = dist.group.WORLD
    assert whole.bound_device_id == part.bound_device_id == device
    split = dist.split_group(whole, [[0]])
    for group in (whole, part, split):
        assert isinstance(group._get_backend(device), dist.ProcessGroupNCCL)
        dist.all_reduce(total, group=group)
        dist.all_reduce(torch.ones(10), group=group)
    assert float(total.sum()) == 10.0


def cuda_tensors_are_those_of_a_stock_nccl(world: World) -> None:
    if DEVICE == "cpu":
        return
    for backend in ("muster", "cpu:muster,cuda:nccl", "cuda:nccl,cpu:muster"):
        world.drop()
        world.start(backend)
        device = torch.device("cuda", torch.cuda.current_device())
        nccl = dist.group.WORLD._get_backend(device)
        assert isinstance(nccl, dist.ProcessGroupNCCL)
        with dist._coalescing_manager(device=device, async_ops=True) as several:
            totals = [torch.ones(COUNT, device=DEVICE) for _ in range(3)]
            for total in totals:
                dist.all_reduce(total)
        several.wait()
        work = dist.all_reduce(totals[0], async_op=True)
        work.wait()
        assert type(work).__module__.startswith("torch."), type(work)
        with torch.cuda.use_mem_pool(torch.cuda.MemPool(nccl.mem_allocator)):
            pooled = torch.ones(COUNT, device=DEVICE)
        dist.all_reduce(pooled)
        assert float(pooled.sum() + totals[0].sum()) == 2.0 * COUNT
        dist.all_reduce(torch.ones(10))
        dist.barrier()


CHECKS = (
    a_batch_of_sends_and_receives_goes_to_nccl_as_one,
    ddp_trains_there,
    a_compiled_model_trains_there,
    fully_sharded_parameters_train_there,
    a_split_model_trains_there,
    a_wait_and_a_future_come_after_the_stream,
    a_call_is_captured_in_a_graph,
    an_abort_ends_what_runs_and_a_new_group_works,
    groups_are_made_and_destroyed_many_times,
    a_device_that_is_named_is_the_one_that_is_used,
    cuda_tensors_are_those_of_a_stock_nccl,
)

if __name__ == "__main__":
    main(CHECKS)
