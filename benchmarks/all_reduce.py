"""All-reduce bandwidth between the hosts of a job: NCCL on GPUs, gloo without any.

torchrun --nnodes 2 --nproc-per-node 8 ... all_reduce.py [--largest BYTES]

Rank 0 prints a line for each size. Bus bandwidth is as NCCL's own tests count it: what a link
carries, 2 (n - 1) / n times the bytes reduced per second, whatever the number of ranks. Sums are
checked. It needs torch and nothing of muster, so it runs in any job.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import distributed

SMALLEST_BYTES = 1 << 20
WARM, TIMED = 5, 20  # repetitions of each size


def main() -> None:
    parser = argparse.ArgumentParser(description="all-reduce bandwidth")
    parser.add_argument("--largest", type=int, default=1 << 30, help="bytes; default 1 GiB")
    largest = parser.parse_args().largest
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if gpu else "gloo")
    ranks = distributed.get_world_size()
    size = SMALLEST_BYTES
    while size <= largest:
        took_s = measure(size, device)
        if distributed.get_rank() == 0:
            bus = size * 2 * (ranks - 1) / ranks / took_s
            print(
                f"all_reduce bytes={size} ranks={ranks} time_us={took_s * 1e6:.0f} "
                f"bus_GB_per_s={bus / 1e9:.2f}",
                flush=True,
            )
        size *= 4
    distributed.destroy_process_group()


def measure(size: int, device: torch.device) -> float:
    """Seconds of one all-reduce of `size` bytes. Raises RuntimeError when a sum is wrong."""
    values = torch.ones(size // 4, device=device)
    distributed.all_reduce(values)
    if not bool((values == distributed.get_world_size()).all()):
        raise RuntimeError(f"all-reduce of {size} bytes: a wrong sum")
    values.zero_()  # so that repetitions stay finite
    for _ in range(WARM):
        distributed.all_reduce(values)
    wait(device)
    began_s = time.perf_counter()
    for _ in range(TIMED):
        distributed.all_reduce(values)
    wait(device)
    return (time.perf_counter() - began_s) / TIMED


def wait(device: torch.device) -> None:
    """Until what was started has ended: on a GPU calls return before that."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
