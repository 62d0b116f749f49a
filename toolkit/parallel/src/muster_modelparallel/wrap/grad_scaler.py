"""torch's gradient scaler under the library's name."""

from __future__ import annotations

from typing import Any

import torch

from muster_modelparallel.run.session import current, is_initialized
from muster_modelparallel.wrap.model import DistributedModel


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """torch.amp.GradScaler, on the GPU where there is one, else on the CPU.

    Gradients are averaged over the replicas before they are looked at, and an infinity of one rank
    is an infinity of the average, so all ranks skip the same steps. Source: the public
    documentation, `amp.GradScaler`.
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
