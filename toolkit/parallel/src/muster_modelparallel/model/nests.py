"""Containers taken apart and put together: what a step's arguments and returns may be made of.

list, tuple, dict, set and frozenset, their subclasses, and other mappings, such as a tokenizer's
batch or the output of a transformers model, and instances of dataclasses, by all that they hold.
One that is or has a module or an optimizer is none: it trains. Everything else is a value of its
own, a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch


def parts(value: Any) -> list[tuple[str, Any]] | None:
    """The members of a container with what a reader adds to its name to reach each ("[0]", ".x",
    "['ids']"; "" in a set); None for anything that is no container."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", member) for name, member in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple)):
        return [(f"[{place}]", member) for place, member in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [("", member) for member in value]
    names = _fields(value)
    return None if names is None else [(f".{name}", getattr(value, name)) for name in names]


def members(value: Any) -> list[Any] | None:
    """Those of `parts` without names: every microbatch is taken apart several times."""
    if type(value) in _LEAVES:
        return None
    if type(value) is dict:
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, Mapping):
        return [value[key] for key in value]
    names = _fields(value)
    return None if names is None else [getattr(value, name) for name in names]


_LEAVES = frozenset([torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str])
_TRAINS = (torch.nn.Module, torch.optim.Optimizer)


def has_tensors(value: Any) -> bool:
    """Whether an object that is no container has tensors as attributes, and is no module."""
    held = () if isinstance(value, _TRAINS) else getattr(value, "__dict__", {}).values()
    return not isinstance(value, type) and any(isinstance(one, torch.Tensor) for one in held)


def _fields(value: Any) -> list[str] | None:
    """Of an instance of a dataclass that is a container."""
    if not hasattr(type(value), "__dataclass_fields__") or isinstance(value, _TRAINS):
        return None
    fields = [one.name for one in dataclasses.fields(value) if hasattr(value, one.name)]
    names = list(dict.fromkeys([*fields, *getattr(value, "__dict__", ())]))  # `__post_init__`'s too
    return None if any(isinstance(getattr(value, name), _TRAINS) for name in names) else names


def put_together(value: Any, new: Sequence[Any]) -> Any:
    """A container like `value` with other members, in the order of `parts`; `value` itself where
    they are the same ones."""
    found = members(value)
    assert found is not None
    if all(old is one for old, one in zip(found, new, strict=True)):
        return value
    if isinstance(value, Mapping):
        return _mapping(value, new)
    if isinstance(value, tuple):
        return _tuple(value, new)
    if isinstance(value, list):
        made = copy.copy(value)
        made[:] = new
        return made
    if (names := _fields(value)) is not None:
        made = copy.copy(value)
        for name, member in zip(names, new, strict=True):
            object.__setattr__(made, name, member)  # of a frozen one, too
        return made
    return type(value)(new)


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """The same with each tensor changed, in containers too."""
    if isinstance(value, torch.Tensor):
        return change(value)
    found = members(value)
    if found is None:
        return value
    return put_together(value, [map_tensors(change, member) for member in found])


def leaves(value: Any) -> list[Any]:
    """All values in the containers, in the order of `parts`; the value itself if it is none."""
    found: list[Any] = []
    rest = [value]
    while rest:
        inner = members(one := rest.pop())
        if inner is None:
            found.append(one)
        else:
            rest += reversed(inner)
    return found


def filled(value: Any, new: Iterator[Any]) -> Any:
    """The same containers with the next ones of `new` in place of their leaves."""
    found = members(value)
    if found is None:
        return next(new)
    return put_together(value, [filled(member, new) for member in found])


def _mapping(value: Mapping[Any, Any], members: Sequence[Any]) -> Any:
    pairs = dict(zip(value, members, strict=True))
    if not isinstance(value, MutableMapping):
        return pairs
    made = copy.copy(value)  # keeps the type and whatever else it holds
    for key, member in pairs.items():
        made[key] = member
    return made


def _tuple(value: tuple[Any, ...], members: Sequence[Any]) -> Any:
    if hasattr(value, "_make"):
        return value._make(members)
    if hasattr(value, "n_sequence_fields"):  # what torch.max(..., dim) gives
        return type(value)(members)
    return tuple(members)
