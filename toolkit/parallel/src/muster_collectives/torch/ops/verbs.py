"""The verbs of c10d: one table, from which the group's methods are made, in all spellings; and what
c10d passes to them, in one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.torch.ops import lowering
from muster_collectives.torch.ops.lowered import LoweredOp
from muster_collectives.torch.works.work import CoalescedWork

Lower = Callable[..., LoweredOp]  # raises NotLoweredError where the core does not do it

# a verb on several tensors that an inner group may not have, as the one on each of them
_SINGLES = {
    "all_gather_single_coalesced": ("all_gather_single", "_allgather_base"),
    "reduce_scatter_single_coalesced": ("reduce_scatter_single", "_reduce_scatter_base"),
}


def timeout_of(options: Any) -> float | None:
    """Seconds; None where the options leave it to the group (c10d writes -1 ms there)."""
    timeout: timedelta = options.timeout
    return None if timeout.days < 0 else timeout.total_seconds()


@dataclass(frozen=True)
class C10dVerb:
    """One verb of c10d. `lower`: what it comes to on CPU tensors; it takes the group's size, the
    rank, then what c10d passes. `spellings`: the names of 2.13 first, then those of older versions.

    `levels`: for each tensor argument how deep its lists are; -1 is a list of numbers. `extras`:
    what the short form of the call (without an options object) has after the tensors.
    """

    lower: Lower
    spellings: tuple[str, ...]
    levels: tuple[int, ...]
    options: type[Any]
    extras: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.spellings[0]

    def method_of(self, inner: Any) -> Any:
        """This verb of another group, by the name that it has there; None where it has none."""
        found = (getattr(inner, spelling, None) for spelling in self.spellings)
        return next((method for method in found if method is not None), None)

    def call_on(self, inner: Any, arguments: Arguments) -> Any:
        """The same call on another group."""
        method = self.method_of(inner)
        if method is not None:
            return method(*arguments.tensors, arguments.options)
        for spelling in _SINGLES.get(self.name, ()):
            method = getattr(inner, spelling, None)
            if method is not None:
                pairs = zip(*arguments.tensors, strict=True)
                return CoalescedWork([method(to, of, arguments.options) for to, of in pairs])
        raise NotImplementedError(f"{type(inner).__name__} has no {self.name}")


@dataclass(frozen=True)
class Arguments:
    """A call in its long form: lists as deep as c10d wants them, and an options object."""

    tensors: tuple[Any, ...]
    options: Any


_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


def canonical(verb: C10dVerb, args: Sequence[Any], named: Mapping[str, Any]) -> Arguments:
    """The long form of any form that the methods of a c10d group take. Raises TypeError."""
    settings = {key: value for key, value in named.items() if key in ("opts", *verb.extras)}
    values = [*args, *(value for key, value in named.items() if key not in settings)]
    count = len(verb.levels)
    if len(values) < count:
        raise TypeError(f"{verb.name} takes {count} tensor arguments, {len(values)} were given")
    tensors = tuple(
        _nested(value, level) for value, level in zip(values, verb.levels, strict=False)
    )
    rest = values[count:]
    if rest and hasattr(rest[0], "timeout"):  # an options object, whatever its class
        return Arguments(tensors, rest[0])
    if rest and rest[0] is None and len(rest) == 1:
        rest = []
    if len(rest) > len(verb.extras):
        raise TypeError(f"{verb.name} takes at most {len(verb.extras)} arguments after the tensors")
    options = settings.pop("opts", None)
    if options is not None:
        return Arguments(tensors, options)
    options = verb.options()
    for key, value in (*zip(verb.extras, rest, strict=False), *settings.items()):
        if value is not None:
            wrapped = dist.ReduceOp(value) if key == "op" else value
            setattr(options, _FIELDS[key], wrapped)
    return Arguments(tensors, options)


def _nested(value: Any, level: int) -> Any:
    """`value` in as many lists as c10d's long form has."""
    if level < 0:
        return list(value)
    depth, inner = 0, value
    while isinstance(inner, list | tuple):
        depth += 1
        if not inner:
            return list(value)
        inner = inner[0]
    for _ in range(level - depth):
        value = [value]
    return value


def _of_one(lower: Lower) -> Lower:
    """A verb on an output and an input, as the one on lists of them."""
    return lambda size, rank, to, of, options: lower(size, rank, [to], [of], options)


def _verb(
    lower: Lower,
    spellings: str,
    levels: tuple[int, ...],
    options: str,
    *extras: str,
) -> C10dVerb:
    kind: Any = getattr(dist, options, None) or getattr(dist.distributed_c10d, options)
    return C10dVerb(lower, tuple(spellings.split()), levels, kind, extras)


_TABLE = (
    _verb(lowering.all_reduce, "allreduce", (1,), "AllreduceOptions", "op", "timeout"),
    _verb(lowering.all_reduce, "allreduce_coalesced", (1,), "AllreduceCoalescedOptions"),
    _verb(lowering.reduce, "reduce", (1,), "ReduceOptions", "root", "op", "timeout"),
    _verb(
        lowering.reduce_scatter, "reduce_scatter", (1, 2), "ReduceScatterOptions", "op", "timeout"
    ),
    _verb(
        _of_one(lowering.reduce_scatter_single_coalesced),
        "reduce_scatter_single _reduce_scatter_base", (0, 0),
        "ReduceScatterOptions", "op", "timeout",
    ),
    _verb(
        lowering.reduce_scatter_single_coalesced,
        "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced", (1, 1),
        "ReduceScatterOptions",
    ),
    _verb(lowering.broadcast, "broadcast", (1,), "BroadcastOptions", "root", "timeout"),
    _verb(lowering.all_gather, "allgather", (2, 1), "AllgatherOptions", "timeout"),
    _verb(lowering.all_gather_coalesced, "allgather_coalesced", (2, 1), "AllgatherOptions"),
    _verb(
        _of_one(lowering.all_gather_single_coalesced), "all_gather_single _allgather_base", (0, 0),
        "AllgatherOptions", "timeout",
    ),
    _verb(
        lowering.all_gather_single_coalesced,
        "all_gather_single_coalesced allgather_into_tensor_coalesced", (1, 1), "AllgatherOptions",
    ),
    _verb(lowering.gather, "gather", (2, 1), "GatherOptions", "root", "timeout"),
    _verb(lowering.scatter, "scatter", (1, 2), "ScatterOptions", "root", "timeout"),
    _verb(
        lowering.all_to_all_single, "all_to_all_single alltoall_base", (0, 0, -1, -1),
        "AllToAllOptions", "timeout",
    ),
    _verb(lowering.all_to_all, "alltoall", (1, 1), "AllToAllOptions", "timeout"),
    _verb(lowering.barrier, "barrier", (), "BarrierOptions", "timeout"),
)  # fmt: skip
VERBS: Mapping[str, C10dVerb] = {verb.name: verb for verb in _TABLE}
