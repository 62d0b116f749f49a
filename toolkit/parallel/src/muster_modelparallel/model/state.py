"""What a forward pass may change in a model, so that it can run unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_modelparallel.model.trace import is_opaque


@dataclass(frozen=True, slots=True)
class PassState:
    """A model's buffers, and the plain attributes of its modules, as they were at some time.

    Passes run on copies of the buffers (`renew`), never on the buffers themselves: graphs may have
    saved those.
    """

    buffers: tuple[tuple[nn.Module, str, torch.Tensor], ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]

    @classmethod
    def of(cls, model: nn.Module) -> PassState:
        return cls(
            tuple(
                (module, name, buffer)
                for module in model.modules()
                for name, buffer in module._buffers.items()
                if buffer is not None
            ),
            tuple((module, _plain(module)) for module in model.modules()),
        )

    def renew(self) -> None:
        """New copies of the buffers; attributes that were added go, changed ones come back."""
        copies: dict[int, torch.Tensor] = {}
        for module, name, buffer in self.buffers:
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.detach().clone()
            module._buffers[name] = copies[id(buffer)]
        self._restore_attributes()

    def restore(self) -> None:
        """The buffers themselves, and the attributes as in `renew`."""
        for module, name, buffer in self.buffers:
            module._buffers[name] = buffer
        self._restore_attributes()

    def _restore_attributes(self) -> None:
        for module, before in self.attributes:
            for name in set(_plain(module)) - set(before):
                del module.__dict__[name]
            module.__dict__.update(before)


def _plain(module: nn.Module) -> dict[str, Any]:
    """Attributes that hold numbers, strings, tensors or nothing."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name != "training" and (isinstance(value, torch.Tensor) or not is_opaque(value))
    }
