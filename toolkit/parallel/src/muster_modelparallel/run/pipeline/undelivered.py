"""A model's output on a rank that did not compute it: fetched when it is read, not before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from muster_modelparallel.model.nests import map_tensors
from muster_modelparallel.model.trace import Meta

Fetch = Callable[[], torch.Tensor]


class Undelivered(torch.Tensor):  # type: ignore[misc]  # torch is untyped here
    """Its shape, dtype and device can be asked for; whatever needs its values fetches them."""

    _fetch: Fetch

    @classmethod
    def of(cls, meta: Meta, fetch: Fetch) -> Undelivered:
        empty = _empty(meta)
        made: Undelivered = torch.Tensor._make_subclass(cls, empty, meta.requires_grad)
        made._fetch = fetch
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _ABOUT:
            return super().__torch_function__(func, types, args, kwargs or {})
        return func(*map_tensors(fetched, tuple(args)), **map_tensors(fetched, dict(kwargs or {})))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and files have the values."""
        return fetched(self).__reduce_ex__(protocol)


@functools.lru_cache(maxsize=64)
def _empty(meta: Meta) -> torch.Tensor:
    """Nobody writes to it, nor to what is made of it."""
    with torch.inference_mode(False):
        return meta.placeholder(writable=False)


def fetched(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, with its values."""
    return tensor._fetch() if isinstance(tensor, Undelivered) else tensor


_ABOUT = frozenset(
    [
        torch.Tensor.shape.__get__,
        torch.Tensor.dtype.__get__,
        torch.Tensor.device.__get__,
        torch.Tensor.ndim.__get__,
        torch.Tensor.requires_grad.__get__,
        torch.Tensor.requires_grad_,
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.numel,
        torch.Tensor.is_floating_point,
        torch.Tensor.__len__,
    ]
)
