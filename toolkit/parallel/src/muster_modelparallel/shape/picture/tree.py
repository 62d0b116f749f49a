"""The units as a tree of modules, as wide as the seconds or the bytes below each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import TypeVar

from muster_modelparallel.shape.picture.markup import (
    STAGE_COLORS,
    Markup,
    bar,
    drawing,
    label,
    size,
)
from muster_modelparallel.shape.plan import Plan

T = TypeVar("T")

WIDTH, ROW = 1000.0, 24.0


def tree(plan: Plan, weights: Sequence[float], say: Callable[[float], str], title: str) -> Markup:
    """One row for each level of module paths, in the order of calls; units in their stage's color,
    below them the stages. `weights`: of each unit; `say`: how one is written."""
    paths = [unit.path.split(".") for unit in plan.profile.units]
    depth = max(map(len, paths))
    ends = [0.0, *accumulate(weights)]
    across = WIDTH / (ends[-1] or 1.0)
    stage_of = list(plan.stage_of.values())
    parts: list[Markup] = []

    def piece(level: float, first: int, end: int, kind: str, name: str) -> None:
        x, weight = ends[first] * across, ends[end] - ends[first]
        what = f"{name}: {say(weight)}, {weight / (ends[-1] or 1.0):.1%}"
        parts.append(bar(x, level * ROW, weight * across - 1, ROW - 2, kind, what))
        last_part = name.rpartition(".")[2]
        parts.append(label(x + 4, level * ROW + 15, last_part, weight * across - 8))

    for level in range(depth):
        for name, first, end in _runs([".".join(path[: level + 1]) for path in paths]):
            if max(map(len, paths[first:end])) > level + 1:
                piece(level, first, end, "module", name)
            elif len(paths[first]) == level + 1:
                piece(level, first, end, f"stage{stage_of[first] % STAGE_COLORS}", name)
    for stage, first, end in _runs(stage_of):
        piece(depth + 0.5, first, end, f"stage{stage % STAGE_COLORS}", f"stage {stage}")
    return drawing(WIDTH, (depth + 1.5) * ROW, title, parts)


def _runs(keys: Sequence[T]) -> Iterator[tuple[T, int, int]]:
    """Neighbours with one key: it, the first, and the one after the last."""
    for key, members in groupby(enumerate(keys), lambda one: one[1]):
        places = [at for at, _ in members]
        yield key, places[0], places[-1] + 1


def unit_bytes(plan: Plan) -> list[float]:
    """What each unit holds at all times, with gradients and optimizer state."""
    units = plan.profile.units
    return [plan.machine.copies * one.parameter_bytes + one.buffer_bytes for one in units]


def memory(plan: Plan) -> Markup:
    """A bar for each rank, and the cap."""
    cap = plan.machine.memory_bytes
    most = max([*plan.rank_bytes, cap or 0, 1])
    across = (WIDTH - 200) / most
    parts = []
    for rank, held in enumerate(plan.rank_bytes):
        y = rank * ROW
        parts.append(label(0, y + 15, f"rank {rank}", 80))
        over = "over" if cap is not None and held > cap else "bytes"
        parts.append(bar(80, y, held * across, ROW - 4, over, f"rank {rank}: {size(held)}"))
        parts.append(label(86 + held * across, y + 15, size(held), 110))
    height = len(plan.rank_bytes) * ROW
    if cap is not None:
        parts.append(bar(80 + cap * across, 0, 2, height, "cap", f"cap: {size(cap)}"))
    return drawing(WIDTH, height, "Bytes of each rank", parts)
