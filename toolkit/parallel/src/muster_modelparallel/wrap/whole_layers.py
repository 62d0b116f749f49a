"""What a wrapped model says of tensor parallelism, where none of its layers is cut, and of what is
not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from muster_modelparallel.errors import NotBuiltError


class WholeLayers(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Source: the public documentation of DistributedModel."""

    def distributed_modules(self) -> Iterator[nn.Module]:
        """Modules cut over ranks by tensor parallelism: none."""
        return iter(())

    def is_distributed_parameter(self, param: Any) -> bool:
        """Whether it is cut over ranks by tensor parallelism."""
        return False

    def is_distributed_buffer(self, buf: Any) -> bool:
        """Whether it is cut over ranks by tensor parallelism."""
        return False

    def is_scaled_batch_parameter(self, param: Any) -> bool:
        """Whether it works on the batch of all its tensor-parallel ranks."""
        return False

    def is_scaled_batch_buffer(self, buf: Any) -> bool:
        """Whether it works on the batch of all its tensor-parallel ranks."""
        return False

    def default_reducer_named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Parameters averaged over the DP group: all."""
        return self.named_parameters()  # type: ignore[no-any-return]

    def scaled_batch_reducer_named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Parameters averaged over the RDP group: none."""
        return iter(())

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotBuiltError."""
        raise NotBuiltError(
            "DistributedModel.join comes with a later release of muster",
            "give all ranks the same number of batches, with drop_last=True",
        )

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotBuiltError."""
        raise NotBuiltError(
            "DistributedModel.register_comm_hook comes with a later release of muster",
            "leave it out: gradients are averaged without it",
        )
