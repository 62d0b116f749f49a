"""A vector beside every bucket of DDP, for what a hook keeps from step to step.

DDP cuts its buckets anew after the first step; what is kept follows the parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

_Place = tuple[int, int, int]  # id of a parameter, which is kept; begin in the bucket; count


class ErrorFeedback:
    """One float32 value for every value of every bucket, zero at first.

    `scale`: by what gradients are multiplied in this step (a GradScaler's get_scale), asked once in
    each; what is kept follows it.
    """

    def __init__(self, scale: Callable[[], float] | None = None) -> None:
        self._scale = scale or (lambda: 1.0)
        self.scaled_by = 0.0  # what is kept; 0: nothing is
        self._last_index = sys.maxsize
        self._buckets: dict[int, tuple[list[_Place], Tensor]] = {}
        self._parameters: dict[int, tuple[Tensor, Tensor]] = {}  # by id: the parameter, its values

    def of(self, bucket: dist.GradBucket) -> Tensor:
        """The vector of this bucket, as long as its buffer, in the units of its gradients."""
        if bucket.index() <= self._last_index:  # buckets come in their order: a new step
            self._follow_scale()
        self._last_index = bucket.index()
        buffer, parameters = bucket.buffer(), bucket.parameters()
        places = [
            (id(parameter), part.storage_offset() - buffer.storage_offset(), part.numel())
            for parameter, part in zip(parameters, bucket.gradients(), strict=True)
        ]
        known = self._buckets.get(bucket.index())
        if known is not None and known[0] == places:
            return known[1]
        values = torch.zeros_like(buffer, dtype=torch.float32)
        for parameter, (key, begin, count) in zip(parameters, places, strict=True):
            part = values[begin : begin + count]
            before = self._parameters.get(key)
            if before is not None and before[1].numel() == count:
                part.copy_(before[1])
            self._parameters[key] = (parameter, part)
        self._buckets[bucket.index()] = (places, values)
        return values

    def _follow_scale(self) -> None:
        now = self._scale()
        if self.scaled_by and now != self.scaled_by:
            for _, values in self._buckets.values():
                values.mul_(now / self.scaled_by)
        self.scaled_by = now

    def values(self, parameter: Tensor) -> Tensor | None:
        """Of one parameter, flat; None before its bucket has come."""
        found = self._parameters.get(id(parameter))
        return None if found is None else found[1]
