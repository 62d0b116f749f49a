"""How long the units of a model take, forward and backward, in passes of the whole model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from muster_modelparallel.model.follow import Forward, replaced_forwards
from muster_modelparallel.model.nests import leaves
from muster_modelparallel.model.trace import tensors
from muster_modelparallel.model.walk import Graph, UnitCall

_STABLE = 0.02  # the best times of two passes in a row changed by less
_MOST_PASSES = 20


@dataclass(frozen=True, slots=True)
class Times:
    """The least seconds forward and backward by call; units of one kind have the same. `noise`: by
    how much the passes of one kind differ from its best, relative, in the median over kinds.
    `usual_s`: what all calls of a pass take together, in the median over passes."""

    seconds: tuple[tuple[float, float], ...]
    noise: float
    usual_s: float


def measured(
    model: nn.Module,
    graph: Graph,
    kinds: Mapping[str, str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    budget_s: float,
) -> Times:
    """Passes until the best times are stable, three at least, and at most `budget_s` once there are
    two. Nothing else should keep the processor busy meanwhile."""
    names = [_kind(call, kinds) for call in graph.calls]
    best: dict[str, tuple[float, float]] = {}
    totals: dict[str, list[float]] = {}
    quiet, start = 0, time.perf_counter()
    for made in range(_MOST_PASSES):
        found: dict[str, list[tuple[float, float]]] = {}
        for name, seconds in zip(names, _pass(model, graph, args, kwargs), strict=True):
            found.setdefault(name, []).append(seconds)
        changed = 0.0
        for name, all_seconds in found.items():
            before = best.get(name, (float("inf"),) * 2)
            now = (
                min(before[0], *(forward for forward, _ in all_seconds)),
                min(before[1], *(backward for _, backward in all_seconds)),
            )
            best[name] = now
            totals.setdefault(name, []).append(statistics.median(map(sum, all_seconds)))
            changed = max(changed, 1 - sum(now) / sum(before))
        quiet = quiet + 1 if changed < _STABLE else 0
        late = time.perf_counter() - start > budget_s
        if quiet >= 2 or (late and made >= 1):
            break
    spread = [
        statistics.median(times[1:] or times) / sum(best[name]) - 1
        for name, times in totals.items()
    ]
    usual = {name: statistics.median(times[1:] or times) for name, times in totals.items()}
    return Times(
        tuple(best[name] for name in names),
        max(0.0, statistics.median(spread or [0.0])),
        sum(usual[name] for name in names),
    )


def _kind(call: UnitCall, kinds: Mapping[str, str]) -> str:
    shapes = [(leaf.meta.shape, leaf.meta.dtype) for leaf in call.arguments if leaf.meta]
    return f"{kinds[call.path]} {shapes}"


def _pass(
    model: nn.Module, graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[float, float]]:
    """Seconds of each call in one pass of the model. Backward runs at once on the graph that the
    call has just made, and only up to the call's own arguments, so no unit runs twice, unless a
    checkpoint around it repeats it."""
    found: list[tuple[float, float]] = []
    inside = False

    def make(path: str, module: nn.Module, real: Forward) -> Forward:
        parameters = [p for p in module.parameters() if p.requires_grad]

        def unit(*given: Any, **named: Any) -> Any:
            nonlocal inside
            if inside:
                return real(*given, **named)
            inside = True
            begin = _now()
            try:
                output = real(*given, **named)
            finally:
                inside = False
            between = _now()
            inside = True  # a checkpoint may call units again in backward
            into = [t for t in tensors([given, named]) if t.requires_grad] + parameters
            try:
                done = _backward(output, into)
            finally:
                inside = False
            found.append((between - begin, _now() - between if done else 2 * (between - begin)))
            return output

        return unit

    modules = dict(model.named_modules())
    with replaced_forwards({call.path: modules[call.path] for call in graph.calls}, make):
        model(*args, **kwargs)
    return found


def _backward(output: Any, into: list[torch.Tensor]) -> bool:
    """Runs it and keeps the graph for others. False where it cannot be run by itself."""
    ends = [
        leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not ends or not into:
        return not ends
    try:
        torch.autograd.grad(
            ends, into, [torch.ones_like(end) for end in ends], retain_graph=True, allow_unused=True
        )
    except RuntimeError:  # such as a graph within a checkpoint
        return False
    return True


def _now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
