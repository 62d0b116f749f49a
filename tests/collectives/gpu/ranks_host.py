"""Two ranks on one GPU whose sums are made in host memory (COLLECTIVES_DEVICE_ALL_REDUCE=host), so
without NCCL, which refuses two ranks of a GPU; run by test_gpu.py."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.collectives.support.torch_ranks import World, main

CYCLES = 20_000_000  # some 10 ms of a busy stream


def sums_equal_those_of_gloo(world: World) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (1, 1000, 3_000_001):
            given = (torch.arange(count) % 7 + world.rank).to(dtype)
            expected = given.clone()
            dist.all_reduce(expected, group=world.gloo)
            found = given.cuda()
            torch.cuda._sleep(CYCLES)
            found += 0  # still to come when the sum is asked for
            dist.all_reduce(found)
            torch.testing.assert_close(found.cpu(), expected)


CHECKS = (sums_equal_those_of_gloo,)

if __name__ == "__main__":
    main(CHECKS)
