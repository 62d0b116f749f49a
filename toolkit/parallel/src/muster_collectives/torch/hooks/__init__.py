"""DDP communication hooks that work on the groups of any backend, on processors too.

    model.register_comm_hook(group, bf16_hook)                     # half the bytes
    model.register_comm_hook(Int8State(group), int8_hook)          # a quarter, error feedback
    model.register_comm_hook(TopKState(group), top_k_hook)         # a thousandth, own momentum

All average over the group, return a future, and give every rank the same bits.
"""

from muster_collectives.torch.hooks.average import bf16_hook, fp16_hook
from muster_collectives.torch.hooks.int8 import Int8State, int8_hook
from muster_collectives.torch.hooks.topk import TopKState, WarmUp, top_k_hook

__all__ = [
    "Int8State",
    "TopKState",
    "WarmUp",
    "bf16_hook",
    "fp16_hook",
    "int8_hook",
    "top_k_hook",
]
