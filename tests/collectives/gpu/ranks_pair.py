"""What one GPU can prove of the device path, with two ranks on it; run by test_gpu.py."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from muster_collectives.torch.cuda.groups import make_groups, nccl, plan_layout
from muster_collectives.torch.cuda.path import DevicePath
from muster_collectives.torch.cuda.settings import DeviceSettings
from muster_collectives.torch.cuda.streams import GroupSum
from muster_collectives.torch.hooks import bf16_hook
from tests.collectives.pytorch.device.ranks_device import gloo
from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
LIMIT_S = 60.0
SUM = dist.ReduceOp.SUM
CYCLES = 20_000_000  # some 10 ms of a busy stream


def host_path(world: World, name: str) -> DevicePath:
    store = dist.PrefixStore(f"gpu {name}", world.store)
    groups = make_groups(store, plan_layout(world.rank, [0] * world.size), gloo)
    settings = DeviceSettings(all_reduce="host", segment_bytes=1 << 20)
    return DevicePath(groups, settings, GroupSum(lambda: dist.group.WORLD))


def a_sum_begins_after_the_stream_and_the_stream_goes_on_after_it(world: World) -> None:
    path = host_path(world, "order")
    for _ in range(5):
        tensor = torch.zeros(3_000_000, device="cuda")
        torch.cuda._sleep(CYCLES)
        tensor += world.rank + 1  # still to come when the sum is asked for
        work = path.all_reduce(tensor, SUM)
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            work.wait()
            doubled = tensor * 2
        by_future = work.get_future().then(lambda done: done.value()[0] + 1).wait()
        work.wait()
        expected = world.size * (world.size + 1) / 2
        assert bool((tensor == expected).all()) and bool((by_future == expected + 1).all())
        other.synchronize()
        assert bool((doubled == 2 * expected).all())
        del tensor, doubled  # its memory may be given away only when nothing works on it
    path.close()


def one_rank_of_nccl_makes_every_call(world: World) -> None:
    store = dist.PrefixStore(f"gpu alone {world.rank}", world.store)
    groups = make_groups(store, plan_layout(0, [0]), nccl(LIMIT_S))
    path = DevicePath(groups, DeviceSettings(all_reduce="hierarchical", all_gather="auto"))
    tensor = torch.arange(1000.0, device="cuda")
    path.all_reduce(tensor, SUM).wait()
    output = torch.empty_like(tensor)
    path.all_gather_single(output, tensor).wait()
    assert torch.equal(output.cpu(), torch.arange(1000.0))
    path.close()
    groups.world.shutdown()


def hooks_overlap_with_the_backward_pass_of_a_model_there(world: World) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[0], bucket_cap_mb=1, process_group=world.gloo
    )
    ddp.register_comm_hook(world.gloo, bf16_hook)
    for _ in range(3):
        ddp(torch.full((8, 512), world.rank + 1.0, device="cuda")).square().mean().backward()
    assert all(bool(each.grad.isfinite().all()) for each in ddp.parameters())


CHECKS = (
    a_sum_begins_after_the_stream_and_the_stream_goes_on_after_it,
    one_rank_of_nccl_makes_every_call,
    hooks_overlap_with_the_backward_pass_of_a_model_there,
)

if __name__ == "__main__":
    main(CHECKS)
