"""torch's gradient scaler under the library's name."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.run.session import current, is_initialized
from muster_modelparallel.shape.topology import GroupKind
from muster_modelparallel.wrap.model import DistributedModel
from muster_modelparallel.wrap.optimizer import DistributedOptimizer
from muster_modelparallel.wrap.shard.values import is_cut, part


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """torch.amp.GradScaler, on the GPU where there is one, else on the CPU.

    Gradients are averaged over the replicas before they are looked at, and an infinity on one rank
    counts on all, so that all skip the same steps. Source: the public documentation,
    `amp.GradScaler`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )

    def unscale_(self, optimizer: Any) -> None:
        """As torch's; `step` calls it too. Raises as `DistributedModel.finish_gradients`."""
        model = current().model if is_initialized() else None
        if isinstance(model, DistributedModel):
            model.finish_gradients()
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """As torch's."""
        if not isinstance(optimizer, DistributedOptimizer):
            return super().step(optimizer, *args, **kwargs)
        optimizer.is_scaled_alike = True
        try:
            return super().step(optimizer, *args, **kwargs)
        finally:
            optimizer.is_scaled_alike = False

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: bool
    ) -> Any:
        """torch's own scaler for sharded gradients takes this place, too."""
        parts = _Parts(optimizer)
        found = super()._unscale_grads_(parts, inv_scale, found_inf, allow_fp16)
        session = current() if is_initialized() else None
        if session is None or session.mesh.size == 1:
            return found
        mesh = session.mesh
        anywhere = torch.zeros(1, device=mesh.device)
        for one in found.values():
            anywhere = torch.maximum(anywhere, one.to(mesh.device))
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX, group=mesh.group(GroupKind.WORLD))
        return {mesh.device: anywhere}


class _Parts:
    """An optimizer whose gradients are what this rank has of them."""

    def __init__(self, optimizer: Any) -> None:
        self.param_groups = [
            {"params": [_with_part(one) for one in group["params"]]}
            for group in optimizer.param_groups
        ]


def _with_part(parameter: Any) -> Any:
    if not is_cut(parameter) or parameter.grad is None:
        return parameter
    found = part(parameter.detach())
    found.grad = part(parameter.grad)
    return found
