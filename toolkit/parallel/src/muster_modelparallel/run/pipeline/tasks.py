"""What is known of a step function at work: where it stopped, what it asked, what it reads.

A task is one microbatch of one step on one rank. What all ranks of a pipeline say of their tasks,
put together, is an `Agreed`; what a step function did in the past is its `Habit`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from muster_modelparallel.errors import StepError
from muster_modelparallel.model.random import Draw
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.run.offload import SavedTensors
from muster_modelparallel.run.pipeline.protocols import ModelCall, PreparedCall
from muster_modelparallel.run.pipeline.suspended import Modes, StraightCall, SuspendedCall
from muster_modelparallel.run.session import Microbatch

_SMALL_BYTES = 1 << 16  # outputs that are copied rather than watched for changes


class Want(NamedTuple):
    """A step function reads the output of that number in its microbatch."""

    place: int


@dataclass(frozen=True, slots=True)
class Habit:
    """What a step function did so far: calls of the model for each microbatch, None where that
    was not always the same; whether it called backward; which outputs ranks without the last stage
    read. `reads`: whether on this rank it did so before it returned."""

    calls: int | None
    backward: bool
    wanted: frozenset[int] = frozenset()
    reads: bool = False


class Agreed(NamedTuple):
    """What all ranks of the pipeline know of one another's calls."""

    ended: bool
    called: bool
    backward: bool
    stray: bool
    wanted: tuple[int, ...]


@dataclass(slots=True)
class Output:
    """A tensor that the model returned in a microbatch; None where it was not delivered. `version`:
    of one that is watched for changes."""

    meta: Meta
    tensor: torch.Tensor | None = None
    version: int | None = None

    def keep(self, tensor: torch.Tensor) -> None:
        """On the last stage, before the step function may change it: small ones are copied, and
        those of inference mode, which do not count their changes."""
        held = tensor.detach()
        is_copied = held.nbytes <= _SMALL_BYTES or held.is_inference()
        self.tensor = held.clone() if is_copied else held
        self.version = None if is_copied else held._version

    def check(self) -> None:
        """Raises StepError where it is not what the model returned any more."""
        if self.tensor is None or self.version is None:
            return
        if self.tensor._version != self.version:
            raise StepError(
                f"the step function changed an output of the model of shape {self.meta.shape} in "
                "place, which other ranks read as well",
                "make a new tensor: out = out / 2 in place of out /= 2",
            )


@dataclass(slots=True)
class Task:
    """The step function at work on a microbatch. `said`: where it stopped; None before it began.
    `answer`: of the model, on the last stage. `reads`, `has_returned`: see Habit. `whole`:
    calls before the model was cut, which are not among `calls`."""

    microbatch: Microbatch
    function: Callable[[], Any]
    call: SuspendedCall | StraightCall
    stream: Draw
    said: Any = None
    answer: Any = None
    reads: bool = False
    has_returned: bool = False
    calls: int = 0
    whole: int = 0
    segment: int = 0
    model_call: ModelCall | None = None
    modes: Modes | None = None
    prepared: PreparedCall | None = None
    outputs: list[Output] = field(default_factory=list)
    roots: list[torch.Tensor] = field(default_factory=list)
    seeds: list[torch.Tensor | None] = field(default_factory=list)
    saved: dict[tuple[int, int], SavedTensors] = field(default_factory=dict)


def not_called() -> StepError:
    return StepError(
        "the step function did not call the model in a microbatch, but did before",
        "call the model once for each microbatch, in every step",
    )


def not_differentiable() -> StepError:
    return StepError(
        "model.backward was called, but no call of the model in that microbatch had gradients",
        "call the model outside torch.no_grad() for what backward starts from",
    )


def called_again(task: Task) -> StepError:
    return StepError(
        f"microbatch {task.microbatch.index}: the step function called the model a second time, "
        "but once in the steps before",
        "make it a step function of its own, or call the model as often in every step",
    )
