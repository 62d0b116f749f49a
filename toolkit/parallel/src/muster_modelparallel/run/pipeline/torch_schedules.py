"""The order of actions of torch's schedules with several stages on a rank, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

from muster_modelparallel.errors import PlanError
from muster_modelparallel.shape.schedule import Action, Kind, Schedule

LOOPS = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
"""Rank r has stages r, r + ranks, r + 2 x ranks, ..."""
THERE_AND_BACK = ("ZBVZeroBubble", "DualPipeV")
"""Rank r has stage r and the r-th from the end."""


def torch_schedule(name: str, ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """The table of that schedule of torch with `chunks` stages on each rank. Raises PlanError where
    torch refuses these numbers, with its reason."""
    last = ranks * chunks - 1
    mine = (0, last) if name in THERE_AND_BACK else range(0, last + 1, ranks)
    stages = [
        # what the constructors of torch 2.13 read of a stage
        SimpleNamespace(
            stage_index=stage,
            num_stages=last + 1,
            group_size=ranks,
            group_rank=0,
            is_first=stage == 0,
            is_last=stage == last,
            has_backward=True,
            submod=None,
            device="cpu",
        )
        for stage in mine
    ]
    make: Callable[..., Any] = schedules.get_schedule_class(name)
    try:
        order = make(stages, microbatches, loss_fn=lambda output, _: output).pipeline_order
    except ValueError as error:
        raise PlanError(f"{name} on {ranks} ranks: {error}") from error
    actions = (tuple(_flat(order[rank])) for rank in range(ranks))
    return Schedule(name, microbatches, tuple(actions))


def _flat(actions: Iterable[Any]) -> Iterable[Action]:
    """torch does the halves of an overlapped pair one after the other."""
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            yield from _flat(action.sub_actions)
        elif action.computation_type.value in {kind.value for kind in Kind}:
            kind = Kind(action.computation_type.value)
            yield Action(kind, action.stage_index, action.microbatch_index)
