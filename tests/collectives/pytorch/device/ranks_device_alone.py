"""What one rank on one GPU can prove of the group "muster"; run by test_device.py."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from tests.collectives.support.torch_ranks import World, main

warnings.filterwarnings("ignore")
CYCLES = 20_000_000  # some 10 ms of a busy stream


def a_batch_of_sends_and_receives_goes_to_nccl_as_one(world: World) -> None:
    """To itself: NCCL has no second rank on one GPU, and a send to oneself cannot end alone."""
    for count in (10, 50_000_000):  # beyond what NCCL buffers
        given = torch.arange(float(count), device="cuda")
        torch.cuda._sleep(CYCLES)
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
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=1)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    losses = []
    for _ in range(3):
        loss = ddp(torch.ones(8, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[2] < losses[0]


CHECKS = (
    a_batch_of_sends_and_receives_goes_to_nccl_as_one,
    ddp_trains_there,
)

if __name__ == "__main__":
    main(CHECKS)
