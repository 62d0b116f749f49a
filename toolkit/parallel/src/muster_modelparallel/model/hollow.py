"""Parameters of one stored element: stages that do not own them, and models that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def hollow(parameter: torch.Tensor, value: float = 0.0) -> torch.Tensor:
    """That shape, dtype and device in one stored element: `value`, or 0 in a type that has no
    fractions. On "meta" it is on the CPU: python may ask for values."""
    device = "cpu" if parameter.is_meta else parameter.device
    known = value if parameter.is_floating_point() or parameter.is_complex() else 0
    return torch.full((), known, dtype=parameter.dtype, device=device).expand(parameter.shape)


@contextmanager
def hollow_parameters(model: nn.Module, keep: Set[str] = frozenset()) -> Iterator[None]:
    """Inside, all parameters but those of these names have one element each. They stay the same
    objects, of the same shape, as an optimizer knows them."""
    before: list[tuple[nn.Parameter, torch.Tensor]] = []
    try:
        for name, parameter in model.named_parameters():
            if name not in keep:
                before.append((parameter, parameter.data))
                parameter.data = hollow(parameter)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def made_hollow(model: nn.Module) -> nn.Module:
    """The model, made on the device "meta", with one element for each parameter and buffer."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                module._parameters[name] = nn.Parameter(hollow(parameter), parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = hollow(buffer)
    return model


def answered_by_shape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operator's result by its shape alone, in one element, if it would read a hollow tensor:
    else it might copy a whole weight. NotImplemented where it must be computed: for other tensors,
    for views, and for what has no shape without values."""
    given: list[torch.Tensor] = []

    def as_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            given.append(value)
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )
        if isinstance(value, (list, tuple)):
            return type(value)(as_meta(member) for member in value)
        return value

    if any(argument.alias_info and not argument.alias_info.is_write for argument in _aliases(func)):
        return NotImplemented  # a view costs nothing
    meta_args = [as_meta(value) for value in args]
    meta_kwargs = {
        name: torch.device("meta") if isinstance(value, torch.device) else as_meta(value)
        for name, value in kwargs.items()
    }
    if not any(is_hollow(tensor) for tensor in given):
        return NotImplemented
    if any(argument.alias_info for argument in func._schema.arguments):
        return args[0] if len(func._schema.returns) == 1 else NotImplemented  # in place: no values
    try:
        made = func(*meta_args, **meta_kwargs)
    except (RuntimeError, NotImplementedError):  # its shape depends on values
        return NotImplemented
    device = given[0].device

    def as_hollow(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros((), dtype=value.dtype, device=device).expand(value.shape)
        if isinstance(value, (list, tuple)):
            return type(value)(as_hollow(member) for member in value)
        return value

    return as_hollow(made)


def _aliases(func: Any) -> list[Any]:
    return [*func._schema.arguments, *func._schema.returns]


def is_hollow(tensor: torch.Tensor) -> bool:
    """Whether all elements of several are one in memory."""
    return tensor.numel() > 1 and not any(
        stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    )
