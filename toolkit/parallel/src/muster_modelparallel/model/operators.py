"""The base of what sees every operator of torch."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """A dispatch mode of torch, made without torch.compile."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """What would keep torch.compile out of it imports all of torch._dynamo: three seconds."""
        return False
