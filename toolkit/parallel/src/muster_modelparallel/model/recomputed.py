"""Parts of a pass whose gradients come by a custom function that computes them again in backward:
`torch.utils.checkpoint` with use_reentrant=True.

Inside of one, gradients are off and nothing that is passed on has any: a cut there would leave the
stages before it without gradients, and no output would show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from muster_modelparallel.model.trace import Enter, Event, Exit, Leaf, Op, Region

Used = Iterable[tuple[int, bool]]
"""Storages, and whether the tensor needs a gradient."""


@dataclass(slots=True, eq=False)
class _Open:
    begin: int
    results: set[int] = field(default_factory=set)
    end: int = -1


class Regions:
    """Told of a pass as it goes, finds them: what was made without gradients has one later."""

    def __init__(self) -> None:
        self._all: list[_Open] = []
        self._now: _Open | None = None
        self._born: dict[int, _Open] = {}

    def at(self, event: int, grad: bool, used: Used) -> None:
        """Before that event, with gradients on or off."""
        for storage, needs in used:
            region = self._born.get(storage) if needs else None
            if region is not None:
                region.results.add(storage)
                if region is self._now:
                    self._end(event)
        if grad:
            self._end(event)
        elif self._now is None:
            self._now = _Open(event)
            self._all.append(self._now)

    def made(self, storages: Iterable[int]) -> None:
        """New memory."""
        if self._now is not None:
            self._born.update(dict.fromkeys(storages, self._now))

    def found(self) -> tuple[Region, ...]:
        """Those whose results need gradients."""
        return tuple(
            Region(one.begin, one.end, frozenset(one.results)) for one in self._all if one.results
        )

    def _end(self, event: int) -> None:
        if self._now is not None:
            self._now.end = event
            self._now = None


def with_gradients(events: Sequence[Event], regions: Sequence[Region]) -> tuple[Event, ...]:
    """What modules returned as a result of a region needs a gradient, as it does after it."""
    made = list(events)
    for region in regions:
        for at in range(region.begin, region.end):
            event = made[at]
            if isinstance(event, Exit):
                new = tuple(_needing(leaf, region.results) for leaf in event.leaves)
                made[at] = replace(event, leaves=new)
    return tuple(made)


def _needing(leaf: Leaf, results: frozenset[int]) -> Leaf:
    if leaf.meta is None or leaf.storage not in results:
        return leaf
    return replace(leaf, meta=replace(leaf.meta, requires_grad=True))


def sealed(events: Sequence[Event], regions: Sequence[Region]) -> frozenset[str]:
    """The modules that stay whole: those called in a region and, where the code after them in it
    makes its results, the one that it is in."""
    found: set[str] = set()
    for region in regions:
        found |= {e.path for e in events[region.begin : region.end] if isinstance(e, Enter)}
        if not region.results <= returned_in(events, region):
            stack: list[str] = []
            for event in events[: region.begin]:
                if isinstance(event, Enter):
                    stack.append(event.path)
                elif isinstance(event, Exit):
                    stack.pop()
            found.update(stack[-1:])
    return frozenset(found - {""})


def returned_in(events: Sequence[Event], region: Region) -> frozenset[int]:
    """Storages that modules return in it, and of which its own code then makes no view and changes
    nothing: what such code makes of them is a result of code."""
    found, depth = frozenset[int](), 0
    for event in events[region.begin : region.end]:
        if isinstance(event, Enter):
            depth += 1
        elif isinstance(event, Exit):
            depth -= 1
            found |= {leaf.storage for leaf in event.leaves if leaf.meta is not None}
        elif isinstance(event, Op) and not depth and not event.makes:
            found -= set(event.reads)
    return found
