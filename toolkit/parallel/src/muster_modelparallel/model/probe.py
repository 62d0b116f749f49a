"""Learns what a plan needs to know of a model: units, what flows between them, and their costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_modelparallel.errors import SplitError
from muster_modelparallel.model.follow import trace
from muster_modelparallel.model.hollow import hollow_parameters
from muster_modelparallel.model.measure import measured
from muster_modelparallel.model.random import kept_random_state
from muster_modelparallel.model.split import Split, split_of
from muster_modelparallel.model.state import Kept, PassState
from muster_modelparallel.model.trace import Trace
from muster_modelparallel.model.walk import Graph, UnitCall, graph_of
from muster_modelparallel.shape.units import (
    INPUT,
    Constraint,
    Crossing,
    Flow,
    ModelProfile,
    Tie,
    Unit,
)

FRACTION = 0.5
"""A module is opened that is heavier than this part of a stage."""
_LEAST_FRACTION = 1e-6
BUDGET_S = 30.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A probed model: its profile, to plan with, and what a split of it is made from. `state`: the
    model's before it was run; `kept`: what modules then kept of the pass."""

    profile: ModelProfile
    trace: Trace
    graph: Graph
    state: PassState
    kept: tuple[Kept, ...] = ()

    def split(self, stages: Sequence[int]) -> Split:
        """The units on those stages, one number for each. Raises SplitError if they cannot be."""
        return split_of(self.trace, self.graph, stages)


def probe(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    parts: int,
    microbatches: int = 1,
    timing: bool = True,
    hollow: bool = False,
    budget_s: float = BUDGET_S,
) -> Probe:
    """Runs one microbatch through the model, in the mode it is in, and finds units for `parts`
    stages. timing: passes forward and backward are repeated until their times are stable, for at
    most `budget_s`; without it costs are FLOPs.

    hollow: for a model that does not fit: parameters are taken as shapes, nothing is computed on
    them, and what their values decide is not seen. Parameters, gradients, buffers and random
    numbers are what they were. Raises SplitError where there are fewer units than stages.
    """
    state = PassState.of(model)
    try:
        with kept_random_state(), hollow_parameters(model, frozenset() if hollow else _all(model)):
            state.renew()
            seen = trace(model, args, kwargs, hollow)
            kept = state.kept()
            state.renew()
            graph = _chosen(seen, parts)
            times = (
                measured(model, graph, seen.kinds, args, kwargs, budget_s)
                if timing and not hollow
                else None
            )
    finally:
        state.restore()
    units = tuple(
        _unit(seen, graph, at, times.seconds[at] if times else (0.0, 0.0))
        for at in range(len(graph.calls))
    )
    profile = ModelProfile(
        seen.model,
        units,
        _flows(seen, graph),
        _ties(seen, graph),
        tuple(Constraint((bound.first, bound.last), bound.why) for bound in graph.bounds),
        microbatches,
        torch.get_num_threads(),
        "measured" if times else "flops",
        times.noise if times else 0.0,
        crossings=tuple(_crossings(seen, graph)),
    )
    return Probe(profile, seen, graph, state, kept)


def usual_s(
    model: nn.Module, found: Probe, args: Sequence[Any], kwargs: Mapping[str, Any], budget_s: float
) -> float:
    """What the units take now in a pass of that microbatch, forward and backward: for ranks that
    measure at the same time, to know how much they slow each other. Nothing changes."""
    try:
        with kept_random_state():
            found.state.renew()
            times = measured(model, found.graph, found.trace.kinds, args, kwargs, budget_s)
            return times.usual_s
    finally:
        found.state.restore()


def _all(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def _chosen(seen: Trace, parts: int) -> Graph:
    """Modules opened until none with parts in it is heavier than a fraction of a stage, and there
    are cuts enough."""
    fraction = FRACTION
    graph = graph_of(seen, frozenset())
    if not graph.calls:
        raise SplitError(f"{seen.model} calls no modules that could be units", "use one partition")
    while True:
        graph = _opened(seen, graph, fraction / parts)
        if len(graph.cuts()) >= parts - 1:
            return graph
        fraction /= 4
        if fraction < _LEAST_FRACTION:
            raise SplitError(_too_few(seen, graph, parts), "use fewer partitions")


def _opened(seen: Trace, graph: Graph, limit: float) -> Graph:
    weight = sum(seen.parameter_bytes.values()) or 1
    while True:
        flops = sum(call.flops for call in graph.calls) or 1.0
        heavy = {
            call.path
            for call in graph.calls
            if call.inner
            and call.path not in seen.sealed
            and max(call.flops / flops, _bytes(seen, call) / weight) > limit
        }
        if not heavy:
            return graph
        graph = graph_of(seen, graph.opened | heavy)


def _bytes(seen: Trace, call: UnitCall) -> int:
    return sum(seen.parameter_bytes[name] for name in call.parameters)


def _too_few(seen: Trace, graph: Graph, parts: int) -> str:
    reasons = sorted(
        {
            f"{graph.calls[bound.first].name} to {graph.calls[bound.last].name} ({bound.why})"
            for bound in graph.bounds
        }
    )
    held = f"; not parted: {', '.join(reasons[:4])}" if reasons else ""
    return (
        f"{seen.model} has {len(graph.calls)} units with {len(graph.cuts())} places to cut, too "
        f"few for {parts} partitions{held}"
    )


def _unit(seen: Trace, graph: Graph, at: int, seconds: tuple[float, float]) -> Unit:
    call = graph.calls[at]
    inside = f"{call.path}."
    buffers = (
        size
        for name, size in seen.buffer_bytes.items()
        if not call.count and (name.startswith(inside) or not call.path)
    )
    return Unit(
        path=call.path,
        call=call.count,
        block=_block(call.path),
        parameters=tuple(name for name in graph.names if name in call.parameters),
        parameter_bytes=_bytes(seen, call),
        buffer_bytes=sum(buffers),
        forward_s=seconds[0],
        backward_s=seconds[1],
        flops=call.flops,
        saved_bytes=call.saved_bytes,
        output_bytes=sum(leaf.meta.bytes for leaf in call.returned if leaf.meta is not None),
        parts=sum(path.count(".") == call.path.count(".") + 1 for path in call.inner),
    )


def _block(path: str) -> str:
    """`h.3` for `h.3` and all that is in it."""
    words = path.split(".")
    places = [at for at, word in enumerate(words) if word.isdigit()]
    return ".".join(words[: places[0] + 1]) if places else ""


def _flows(seen: Trace, graph: Graph) -> tuple[Flow, ...]:
    found = []
    for target, need in enumerate(graph.needs):
        given = (
            {leaf.storage for leaf in graph.calls[target].arguments}
            if target < len(graph.calls)
            else set()
        )
        for source in sorted(need):
            if source.kind == "parameter":
                continue
            if source.kind == "input":
                meta, storage = seen.inputs[source.leaf].meta, seen.inputs[source.leaf].storage
            else:
                call = graph.calls[source.owner]
                meta = call.meta(source.leaf)
                storage = call.leaves()[source.leaf].storage
            assert meta is not None
            why = "output" if target == len(graph.calls) else "glue"
            found.append(
                Flow(
                    INPUT if source.kind == "input" else source.owner,
                    target,
                    meta.bytes,
                    source.leaf,
                    "argument" if storage in given else why,
                    meta.requires_grad,
                )
            )
    return tuple(found)


def _crossings(seen: Trace, graph: Graph) -> Iterator[Crossing]:
    """With the modules closed again that a split closes."""
    count = len(graph.calls)
    for cut in sorted(graph.cuts()):
        split = split_of(seen, graph, (0,) * cut + (1,) * (count - cut))
        given = [seen.inputs[leaf].meta for leaf in split.inputs[1]]
        metas = [meta for meta in (*split.metas(1), *given) if meta is not None]
        grads = [meta.bytes for meta in metas if meta.requires_grad]
        size = sum(meta.bytes for meta in metas)
        yield Crossing(cut, len(metas), size, len(grads), sum(grads))


def _ties(seen: Trace, graph: Graph) -> tuple[Tie, ...]:
    users: dict[str, set[int]] = {}
    last = len(graph.calls) - 1
    for at, call in enumerate(graph.calls):
        for name in call.parameters:
            users.setdefault(name, set()).add(at)
    for target, need in enumerate(graph.needs):
        for source in need:
            if source.kind == "parameter":
                users.setdefault(graph.names[source.leaf], set()).add(min(target, last))
    return tuple(
        Tie(name, seen.parameter_bytes[name], tuple(sorted(units)))
        for name, units in users.items()
        if len(units) > 1
    )
