"""What a forward pass may change in a model, so that it can run unseen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_modelparallel.model.nests import leaves, map_tensors
from muster_modelparallel.model.trace import OF_TORCH, Meta, is_opaque

Kept = tuple[nn.Module, str, Any]
"""A module's attribute with what it holds; of tensors only the shapes are there."""


@dataclass(frozen=True, slots=True)
class PassState:
    """A model's buffers, and the attributes of its modules, as they were at some time: plain ones,
    and what lists, dictionaries and sets held.

    Passes run on copies of the buffers (`renew`), never on the buffers themselves: graphs may have
    saved those.
    """

    buffers: tuple[tuple[nn.Module, str, torch.Tensor | None], ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]
    containers: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, model: nn.Module) -> PassState:
        return cls(
            tuple(
                (module, name, buffer)
                for module in model.modules()
                for name, buffer in module._buffers.items()
            ),
            tuple((module, _plain(module)) for module in model.modules()),
            tuple((one, one.copy()) for one in _containers(model)),
        )

    def renew(self) -> None:
        """New copies of the buffers; attributes that were added go, changed ones come back, and
        autocast forgets what it has cast."""
        torch.clear_autocast_cache()
        copies: dict[int, torch.Tensor] = {}
        for module, name, buffer in self.buffers:
            if buffer is not None and id(buffer) not in copies:
                copies[id(buffer)] = buffer.detach().clone()
            module._buffers[name] = copies.get(id(buffer))
        self._restore_attributes()

    def restore(self) -> None:
        """The buffers themselves, and the attributes as in `renew`."""
        for module, name, buffer in self.buffers:
            module._buffers[name] = buffer
        self._restore_attributes()

    def kept(self) -> tuple[Kept, ...]:
        """The attributes that a pass has set since: to tensors, containers of such, or numbers."""
        return tuple(
            (module, name, map_tensors(_shape, value))
            for module, before in self.attributes
            for name, value in module.__dict__.items()
            if name not in OF_TORCH and value is not before.get(name) and _is_kept(value)
        )

    def _restore_attributes(self) -> None:
        for module, before in self.attributes:
            for name in set(_plain(module)) - set(before):
                del module.__dict__[name]
            module.__dict__.update(before)
        for container, held in self.containers:
            container.clear()
            (container.update if isinstance(container, (dict, set)) else container.extend)(held)


def _is_kept(value: Any) -> bool:
    found = [one for one in leaves(value) if isinstance(one, torch.Tensor)]
    if not found:
        return type(value) in (int, float)
    return all(one.layout == torch.strided for one in found)


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return Meta.of(tensor).placeholder(writable=False)


def _containers(model: nn.Module) -> Iterator[Any]:
    """Lists, dictionaries and sets that are attributes of modules or lie in such, each once."""
    seen: set[int] = set()
    left = [
        value
        for module in model.modules()
        for name, value in module.__dict__.items()
        if name not in OF_TORCH
    ]
    while left:
        value = left.pop()
        if isinstance(value, (list, dict, set, deque)) and id(value) not in seen:
            seen.add(id(value))
            yield value
            left += value.values() if isinstance(value, dict) else value


def _plain(module: nn.Module) -> dict[str, Any]:
    """Attributes that hold numbers, strings, tensors or nothing."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name != "training" and (isinstance(value, torch.Tensor) or not is_opaque(value))
    }
