"""In a container of cuda-efa without a GPU: what torch says of itself, as JSON."""

import ctypes
import json

import torch
from torch import distributed

ctypes.CDLL("libnccl-net.so")
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": list(torch.cuda.nccl.version()),
            "has_nccl": distributed.is_nccl_available(),
            "has_gpu": torch.cuda.is_available(),
        }
    )
)
