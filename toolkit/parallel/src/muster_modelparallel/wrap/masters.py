"""Keys fp16 and bf16: parameters of half precision, and their values in float32 that an optimizer
updates in their place, so that small steps are not lost to rounding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from muster_modelparallel.errors import StepError
from muster_modelparallel.wrap.shard.values import cut_like, is_cut, part

HALF = (torch.float16, torch.bfloat16)


class MasterWeights:
    """Of the parameters of half precision that this process updates; made when they are first
    updated. What a script changes meanwhile is taken as it is then. The parts of
    parameters that are cut over replicas are in float32 themselves."""

    def __init__(self) -> None:
        self._values: dict[Any, torch.Tensor] = {}
        self._gradients: dict[Any, torch.Tensor] = {}

    def take_gradients(self, parameters: Iterable[Any], factor: float) -> None:
        """Those of half precision in float32, times factor. Raises StepError for sparse ones."""
        self._gradients.clear()
        for one in parameters:
            if one.grad is not None and one.grad.is_sparse and one.dtype in HALF:
                raise StepError(
                    f"a parameter of shape {tuple(one.shape)} has a sparse gradient in half "
                    "precision",
                    "use an embedding with sparse=False",
                )
            if one.grad is not None and one.dtype in HALF:
                self._gradients[one] = one.grad.float().mul_(factor)
            elif one.grad is not None and factor != 1:
                part(one.grad).mul_(factor)

    def forget_gradients(self) -> None:
        """They belong to a step that is over."""
        self._gradients.clear()

    def gradient(self, parameter: Any) -> Any:
        """In float32 where the parameter is of half precision and it was taken."""
        return self._gradients.get(parameter, parameter.grad)

    @contextmanager
    def in_place(self, parameters: Iterable[Any]) -> Iterator[None]:
        """Inside, these parameters and their gradients are in float32; then they are rounded."""
        halves = [(one, one.data, one.grad) for one in parameters if one.dtype in HALF]
        for one, half, grad in halves:
            one.data = self._value(one, half)
            one.grad = None if grad is None else self.gradient(one).float()
        try:
            yield
        finally:
            for one, half, grad in halves:
                self._values[one] = one.data
                half.copy_(one.data)
                one.data, one.grad = half, grad

    def saved(self, parameters: Iterable[Any]) -> dict[int, torch.Tensor]:
        """By number of the parameter."""
        return {
            number: one.detach() if is_cut(one) else self._value(one, one.data)
            for number, one in enumerate(parameters)
            if one in self._values or is_cut(one)
        }

    def load(self, parameters: Iterable[Any], saved: Mapping[int, torch.Tensor]) -> None:
        """What `saved` has given; the parameters are rounded from it."""
        for number, one in enumerate(parameters):
            if number in saved and is_cut(one):
                one.detach().copy_(saved[number])
            elif number in saved and one.dtype in HALF:
                self._values[one] = saved[number].to(one.device, torch.float32, copy=True)
                with torch.no_grad():
                    one.copy_(self._values[one])

    def forget(self, parameter: Any) -> None:
        """Another process updates it from now on."""
        self._values.pop(parameter, None)

    def move(self, before: Any, shard: Any) -> None:
        """A parameter has been cut: its part keeps the value."""
        if before in self._values:
            shard.detach().copy_(cut_like(shard, self._values.pop(before)))

    @staticmethod
    def restore(parameters: Iterable[Any], saved: Mapping[int, torch.Tensor]) -> None:
        """A job without half precision goes on from what `saved` has given."""
        for number, one in enumerate(parameters):
            if number in saved and one.dtype not in HALF:
                one.detach().copy_(saved[number])

    def _value(self, one: Any, half: torch.Tensor) -> torch.Tensor:
        """What the script has changed meanwhile is taken as it is."""
        if one not in self._values:
            return half.float()
        known = self._values[one]
        return torch.where(half == known.to(half.dtype), known, half.float())
