"""The optimizers, on flat tensors and in place; the same arithmetic as torch.optim, in its order.

Each function takes the parameters `p`, the mean gradient `g` (which it may spoil) and the slots,
all of one shape and of the master's dtype; `done`: how many updates came before this one (sgd: 0
for the first that uses momentum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from muster_parameter_server.options import Hyper

Slots = Mapping[str, Tensor]


def sgd(p: Tensor, g: Tensor, slots: Slots, hyper: Hyper, done: int) -> None:
    """torch.optim.SGD: momentum, dampening, weight decay, Nesterov."""
    lr, momentum, dampening, weight_decay, nesterov = hyper
    if weight_decay:
        g.add_(p, alpha=weight_decay)
    if momentum:
        buffer = slots["momentum_buffer"]
        if done:
            buffer.mul_(momentum).add_(g, alpha=1 - dampening)
        else:
            buffer.copy_(g)
        g = g.add_(buffer, alpha=momentum) if nesterov else buffer
    p.add_(g, alpha=-lr)


def adam(
    p: Tensor, g: Tensor, slots: Slots, hyper: Hyper, done: int, decoupled: bool = False
) -> None:
    """torch.optim.Adam: weight decay is added to the gradient. `decoupled`, torch.optim.AdamW:
    it shrinks the parameters themselves."""
    lr, beta1, beta2, eps, weight_decay = hyper
    if decoupled:
        p.mul_(1 - lr * weight_decay)
    elif weight_decay:
        g.add_(p, alpha=weight_decay)
    first, second = slots["exp_avg"], slots["exp_avg_sq"]
    first.lerp_(g, 1 - beta1)
    second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    step = done + 1
    root = torch.sqrt(second, out=g)  # the gradient is not needed any more
    root.div_((1 - beta2**step) ** 0.5).add_(eps)
    p.addcdiv_(first, root, value=-lr / (1 - beta1**step))


UPDATES: Mapping[str, Callable[[Tensor, Tensor, Slots, Hyper, int], None]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": partial(adam, decoupled=True),
}
