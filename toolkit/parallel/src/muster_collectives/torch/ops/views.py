"""Views that say "negated" or "conjugated". The groups behind ours take the numbers that lie in
memory, and the largest of numbers is not the largest of their negatives: they are given what the
views say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Pairs = list[tuple[Tensor, Tensor]]  # a view, and the tensor that stands for it


def is_view(value: Any) -> bool:
    """Whether what the tensor says is not what lies in its memory."""
    # of what is sparse, torch 2.13 has no such views
    return isinstance(value, Tensor) and (value.is_neg() or value.is_conj())


def resolved(tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], Pairs]:
    """The arguments of a verb with plain tensors in the place of views, and those views that the
    verb writes: what stands for them is to be copied back. Written is the first argument, which is
    the output of verbs that have two, and both things of those that work in place."""
    pairs: Pairs = []
    ignored: Pairs = []
    found = tuple(
        _resolved(value, pairs if place == 0 else ignored) for place, value in enumerate(tensors)
    )
    return found, pairs


def has_views(value: Any) -> bool:
    """Whether a tensor somewhere in these lists is such a view."""
    if isinstance(value, list | tuple):
        return any(map(has_views, value))
    return is_view(value)


def write(to: Tensor, of: Tensor, non_blocking: bool = False) -> None:
    """A copy that autograd does not see: a parameter may be written, as c10d does, and what was
    made in inference mode by a thread that is not in it."""
    with torch.inference_mode() if to.is_inference() else torch.no_grad():
        to.copy_(of, non_blocking=non_blocking)


def _resolved(value: Any, pairs: Pairs) -> Any:
    if isinstance(value, list | tuple):
        return [_resolved(each, pairs) for each in value]
    if not is_view(value):
        return value
    plain = value.detach().resolve_conj().resolve_neg()
    pairs.append((value, plain))
    return plain
