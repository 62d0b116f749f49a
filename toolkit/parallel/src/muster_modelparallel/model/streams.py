"""Where in a pass random numbers begin anew: the same places however a model is cut.

Places are the beginnings and the ends of all calls of modules, numbered as the probe saw them. A
unit's own are always such a place. Where something draws right after another one, within a unit or
between units, the module that begins or ends there is watched as well, so that it does not matter
whether a cut made it a unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from muster_modelparallel.model.trace import Enter, Exit, Op, Trace


class Bounds(NamedTuple):
    """The places where a call begins and ends."""

    begin: int
    end: int


def calls_by_event(trace: Trace) -> dict[int, Bounds]:
    """All calls of modules, by their first event."""
    found: dict[int, Bounds] = {}
    stack: list[tuple[int, int]] = []
    place = 0
    for at, event in enumerate(trace.events):
        if isinstance(event, Enter):
            stack.append((at, place))
        elif isinstance(event, Exit):
            first, begin = stack.pop()
            found[first] = Bounds(begin, place)
        else:
            continue
        place += 1
    return found


def watched(trace: Trace, calls: Mapping[int, Bounds]) -> dict[str, tuple[Bounds, ...]]:
    """The calls of the modules that begin or end right before something draws."""
    paths: set[str] = set()
    stack: list[str] = []
    latest = ""
    for event in trace.events:
        if isinstance(event, Enter):
            stack.append(latest := event.path)
        elif isinstance(event, Exit):
            latest = stack.pop()
        elif isinstance(event, Op) and event.draws:
            paths.add(latest)
    found: dict[str, list[Bounds]] = defaultdict(list)
    for first, bounds in sorted(calls.items()):
        event = trace.events[first]
        if isinstance(event, Enter) and event.path in paths and event.path:
            found[event.path].append(bounds)
    return {path: tuple(each) for path, each in found.items()}
