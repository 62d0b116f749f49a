"""Which arguments of a step function are cut into microbatches, on which axis, and how.

Tensors are, also in containers and dataclasses (model/nests.py), and objects with
`smp_slice(num_mb, mb, axis)`; everything else is passed as it is. Source: the public documentation
of `smp.step`.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from muster_modelparallel.errors import StepError, nearest
from muster_modelparallel.model.nests import has_tensors, parts, put_together

_log = logging.getLogger("muster_modelparallel")


class Cuts(NamedTuple):
    """What a step function's decorator says: names of arguments that stay whole, and the batch axis
    of others; 0 where nothing is said."""

    whole: frozenset[str]
    axes: Mapping[str, int]


class Call(NamedTuple):
    """The arguments of one microbatch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Piece(NamedTuple):
    """What is cut: its name as a reader would write it, on which axis, into how many pieces."""

    name: str
    axis: int
    microbatches: int


def read_cuts(
    signature: inspect.Signature,
    non_split_inputs: Iterable[str] | None,
    input_split_axes: Mapping[str, int] | None,
) -> Cuts:
    """Raises StepError for a name that the function does not have, and for one in both."""
    if isinstance(non_split_inputs, str):
        raise StepError(
            f"non_split_inputs is the text {non_split_inputs!r}", "give a list of argument names"
        )
    cuts = Cuts(frozenset(non_split_inputs or ()), dict(input_split_axes or {}))
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in sorted({*cuts.whole, *cuts.axes}):
        if name not in signature.parameters and not takes_any:
            near = nearest(name, signature.parameters) or ", ".join(signature.parameters)
            raise StepError(f"{name!r} is no argument of the step function", f"it has {near}")
        if name in cuts.whole and name in cuts.axes:
            raise StepError(
                f"{name!r} is in non_split_inputs and in input_split_axes", "leave one of them out"
            )
        axis = cuts.axes.get(name, 0)
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise StepError(f"input_split_axes[{name!r}] is {axis!r}", "give the number of an axis")
    return cuts


def cut_arguments(
    signature: inspect.Signature,
    cuts: Cuts,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    count: int,
) -> list[Call]:
    """The arguments of each of `count` microbatches. Pieces are views of the caller's tensors.

    The names of `cuts` are those of the signature: that of `*args` stands for all it takes, as does
    that of `**kwargs` for those without a word of their own. Defaults are not cut: they are no
    inputs. Raises StepError for a tensor that cannot be cut, before anything runs; TypeError for
    arguments that the function does not take.
    """
    bound = signature.bind(*args, **kwargs)
    pieces = {
        name: _pieces_of_argument(signature.parameters[name], value, cuts, count)
        for name, value in bound.arguments.items()
    }
    calls = []
    for index in range(count):
        for name in pieces:
            bound.arguments[name] = pieces[name][index]
        calls.append(Call(bound.args, dict(bound.kwargs)))
    return calls


def _pieces_of_argument(
    parameter: inspect.Parameter, value: Any, cuts: Cuts, count: int
) -> list[Any]:
    if parameter.kind is not parameter.VAR_KEYWORD:
        return _unless_whole(parameter.name, parameter.name, value, cuts, count)
    found: dict[str, list[Any]] = {}
    for key, member in value.items():
        said = key if key in cuts.whole or key in cuts.axes else parameter.name
        found[key] = _unless_whole(said, key, member, cuts, count)
    return [{key: pieces[index] for key, pieces in found.items()} for index in range(count)]


def _unless_whole(said: str, name: str, value: Any, cuts: Cuts, count: int) -> list[Any]:
    if said in cuts.whole:
        return [value] * count
    return _pieces(value, _Piece(name, cuts.axes.get(said, 0), count))


def _pieces(value: Any, piece: _Piece) -> list[Any]:
    """All pieces of one value."""
    if hasattr(type(value), "smp_slice"):
        return [
            value.smp_slice(piece.microbatches, index, piece.axis)
            for index in range(piece.microbatches)
        ]
    if isinstance(value, torch.Tensor):
        return _pieces_of_tensor(value, piece)
    if isinstance(value, PackedSequence):
        raise StepError(
            f"argument {piece.name} is a PackedSequence, whose batch lies on no axis",
            f"pack in the step function, or name {_outer(piece.name)!r} in non_split_inputs",
        )
    found = parts(value)
    if found is None:
        if has_tensors(value):
            _say_whole(piece.name, type(value).__qualname__)
        return [value] * piece.microbatches
    members = [_pieces(member, piece._replace(name=piece.name + more)) for more, member in found]
    return [
        put_together(value, [pieces[index] for pieces in members])
        for index in range(piece.microbatches)
    ]


@functools.cache
def _say_whole(name: str, kind: str) -> None:
    """Once for each: what has tensors may be meant as a batch."""
    if name != "self" and not name.startswith("self."):
        _log.warning(
            "argument %s is a %s, whose tensors are not cut: each microbatch gets all of it, and "
            "it stays each rank's own; pass tensors, containers or a dataclass, or give the class "
            "a method smp_slice(num_mb, mb, axis)", name, kind,
        )  # fmt: skip


def _pieces_of_tensor(tensor: Any, piece: _Piece) -> list[Any]:
    name, axis, count = piece
    if not -tensor.dim() <= axis < tensor.dim():
        raise StepError(
            f"argument {name} has shape {tuple(tensor.shape)}, so no axis {axis} to cut into "
            f"{count} microbatches",
            f"name {_outer(name)!r} in non_split_inputs if it has no batch axis, or its axis in "
            "input_split_axes",
        )
    size = int(tensor.shape[axis])
    if size % count:
        raise StepError(
            f"argument {name} has {size} entries on axis {axis}, which {count} microbatches do not "
            "divide",
            f"use a batch size that is a multiple of {count}, with DataLoader(..., drop_last=True) "
            f"for the last batch; or name {_outer(name)!r} in non_split_inputs",
        )
    width = size // count
    return [tensor.narrow(axis, index * width, width) for index in range(count)]


def _outer(name: str) -> str:
    """The argument of a member: what the decorator's options take."""
    return name.partition("[")[0].partition(".")[0]
