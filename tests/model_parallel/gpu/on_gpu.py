"""Runs a script of checks with its tensors on the GPU: `on_gpu.py SCRIPT ARGUMENT ...`.

Several ranks share the GPU, which NCCL refuses, so they get a backend that keeps NCCL's order.
Without a GPU all is done on the CPU, in that order.
"""

from __future__ import annotations

import os
import runpy
import sys

import torch
import torch.distributed as dist

from tests.model_parallel.support import ordered

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_default_device(DEVICE)
    if os.environ["WORLD_SIZE"] != "1":
        ordered.register()
        dist.init_process_group("ordered")
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
