"""How long the stages of a rank take, measured while it trains.

Medians, for a step may be slow for reasons that are none of the plan's: the first one runs its
microbatches one after the other and partitions the model, and machines do other work now and then.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class StageTimes(NamedTuple):
    """Medians, in seconds: of each stage of this rank forward and backward of a microbatch, of
    the whole step, waits among it."""

    stages: dict[int, tuple[float, float]]
    step_s: float


class StageClock:
    """Measures for so many steps. On a GPU it marks the stream, and waits for nothing before
    `times`."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps = steps
        self._left = steps
        self._on_gpu = device.type == "cuda"
        self._marks: dict[tuple[int, bool], list[tuple[Any, Any]]] = defaultdict(list)
        self._step_s: list[float] = []

    @property
    def is_running(self) -> bool:
        return self._left > 0

    @contextmanager
    def measuring(self, stage: int, backward: bool) -> Iterator[None]:
        """Around the work of a stage on a microbatch; where it raises, nothing counts."""
        began = self._now()
        yield
        self._marks[stage, backward].append((began, self._now()))

    def end_step(self, seconds: float) -> bool:
        """A step that trained took so long. Whether it was the last one that is measured."""
        self._left -= 1
        self._step_s.append(seconds)
        return self._left == 0

    def times(self) -> StageTimes:
        """Of what was measured, which is forgotten."""
        if self._on_gpu:
            torch.cuda.synchronize()
        found = {
            key: statistics.median(self._seconds(*pair) for pair in pairs)
            for key, pairs in self._marks.items()
        }
        self._marks.clear()
        stages = {stage: (found[stage, False], found.get((stage, True), 0.0)) for stage, _ in found}
        return StageTimes(stages, statistics.median(self._step_s))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, began: Any, ended: Any) -> float:
        return float(began.elapsed_time(ended) / 1000 if self._on_gpu else ended - began)
