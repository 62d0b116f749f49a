"""Which parameters are cut over replicas, and which modules are gathered and let go as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import nn

_MOST_OF_ALL = 2  # a unit has at most one of so many parts of what is cut
# these use the parameters of modules in them without calling those
_CLOSED = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.RNNBase,
)


def cut_names(
    named: Mapping[str, torch.Tensor],
    threshold: int,
    degree: int,
    is_dense: Callable[[torch.Tensor], bool] = torch.Tensor.is_contiguous,
) -> frozenset[str]:
    """The names of the parameters to cut: those of at least `threshold` elements whose first
    dimension has something for each of `degree` ranks. Not those of another dtype than most
    elements have, nor with gaps in memory, which fully_shard does not take, nor with hooks, which
    would not be called."""
    elements: Counter[torch.dtype] = Counter()
    for one in named.values():
        elements[one.dtype] += one.numel()
    dtype = max(elements, key=lambda one: (elements[one], str(one)), default=None)
    return frozenset(
        name
        for name, one in named.items()
        if one.numel() >= max(1, threshold)
        and one.dim()
        and one.shape[0] >= degree
        and one.dtype == dtype
        and is_dense(one)
        and not one._backward_hooks
        and not one._post_accumulate_grad_hooks
    )


def shard_units(
    module: nn.Module,
    tops: Iterable[tuple[nn.Module, int]],
    cut: Set[torch.Tensor],
    most: int,
) -> list[tuple[nn.Module, int]]:
    """The largest modules in the `tops`, or they themselves, that have at most `most` elements of
    the parameters `cut`, and at most half of all of them; a smaller one where there is no other.
    Each with the number that its top was given with.

    A parameter that other modules have too (tied ones), or that belongs to a module which is larger
    than that, is in none.
    """
    found: list[tuple[nn.Module, int]] = []
    taken: set[torch.Tensor] = set()
    chains = _chains(module, cut)
    most = min(most, sum(one.numel() for one in cut) // _MOST_OF_ALL)

    def walk(here: nn.Module, stage: int) -> None:
        mine = [one for one in here.parameters() if one in cut and one not in taken]
        if not mine:
            return
        size = sum(one.numel() for one in mine)
        inner = [one for child in here.children() for one in child.parameters() if one in cut]
        fits = size <= most or not inner or isinstance(here, _CLOSED)
        if fits and _is_gathered(here) and all(here in chains[one] for one in mine):
            found.append((here, stage))
            taken.update(mine)
            return
        for child in () if isinstance(here, _CLOSED) else here.children():
            walk(child, stage)

    for top, stage in tops:
        walk(top, stage)
    return found


def _is_gathered(module: nn.Module) -> bool:
    """Whether it is called, which lists and dictionaries of modules are not, and no hook needs its
    parameters before that."""
    return type(module).forward is not nn.Module.forward and not module._forward_pre_hooks


def _chains(module: nn.Module, cut: Set[torch.Tensor]) -> dict[torch.Tensor, set[nn.Module]]:
    """For each parameter the modules around it, by whichever of its names."""
    found: dict[torch.Tensor, set[nn.Module]] = {}
    for name, one in module.named_parameters(remove_duplicate=False):
        if one in cut:
            chain = set(_around(module, name))
            found[one] = found[one] & chain if one in found else chain
    return found


def _around(module: nn.Module, name: str) -> Iterator[nn.Module]:
    here: Any = module
    for word in name.split("."):
        yield here
        here = getattr(here, word)
