"""What a step, a pipeline and a model cut into stages know of one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from muster_modelparallel.model.random import Draw
from muster_modelparallel.model.trace import Leaf, Meta
from muster_modelparallel.run.pipeline.clock import StageTimes
from muster_modelparallel.shape.schedule import Schedule

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Autocast:
    """How torch.autocast stood for one type of device."""

    device: str
    enabled: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of the model in a step function: its arguments, and the modes that held. On all ranks
    of a pipeline tensors have the same values. `training`: of the model. `needing`: a byte for each
    parameter, by the model's order, whether it needed a gradient when the step began."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad: bool
    training: bool
    autocast: tuple[Autocast, ...] = ()
    needing: bytes = b""


class StageRun(Protocol):
    """A stage of this rank, for calls of one signature.

    `receives` comes from the stage before, `sends` goes to the next one, in this order; `()` at the
    ends of the pipeline. With `requires_grad` a gradient of that shape comes back.
    """

    stage: int
    receives: tuple[Meta, ...]
    sends: tuple[Meta, ...]

    def forward(self, call: ModelCall, draw: Draw, received: Tensors) -> Any:
        """On the last stage what the model returns, elsewhere the tensors of `sends`."""

    def forget(self, draw: Draw) -> None:
        """Backward of that microbatch is done: what its forward kept is free."""


class PreparedCall(Protocol):
    """The stages of this rank for calls of one signature: modes, structure, shapes, dtypes.

    `tree` and `outputs`: what the model returns, as `model.nests.filled` puts it together.
    """

    stages: Mapping[int, StageRun]
    tree: Any
    outputs: tuple[Leaf, ...]

    def installed(self) -> AbstractContextManager[None]:
        """Inside, also during backward, the model's units are those of these stages."""


class CutStages(Protocol):
    """The stages of a model, as a step needs them."""

    @property
    def is_partitioned(self) -> bool:
        """Whether it is known where they lie."""

    @property
    def rank_of(self) -> tuple[int, ...]:
        """The rank of each stage, in the pipeline."""

    def begin_step(self) -> None:
        """Before the first microbatch: gradients are those of this step from here on."""

    def prepare(self, call: ModelCall) -> PreparedCall:
        """From a bounded cache, or made anew. No communication."""

    def schedule(self, microbatches: int) -> Schedule:
        """The order of work of a step that trains."""

    def report(self, times: StageTimes, steps: int) -> None:
        """Says once what the stages took in so many steps. Collective."""


class CutModel(Protocol):
    """A wrapped model of several stages, as a step needs it."""

    @property
    def module(self) -> Any:
        """The user's own module."""

    @property
    def stages(self) -> CutStages:
        """Where it is cut."""

    @property
    def is_stray(self) -> bool:
        """Whether gradients came without its `backward` in this step."""

    def begin_backward(self, stage: int, ends_step: bool) -> None:
        """Called before each backward pass of a stage of this rank. ends_step: as far as one knows
        it is this rank's last one in the step."""

    def partition(self, call: ModelCall) -> None:
        """Finds the stages by this call; every rank of the job comes here at its first step that
        calls the model with gradients. Collective. Raises on all ranks alike."""


class StageWork(Protocol):
    """A stage of this rank at work on a step, as the pipeline needs it."""

    def is_known(self, microbatch: int) -> bool:
        """Whether one may ask already what comes, so that it is received ahead."""

    def around(self, microbatch: int, forward: Callable[[], None]) -> None:
        """Calls `forward`, the stage's whole work on a microbatch, where it belongs."""

    def receives(self, microbatch: int) -> Sequence[Meta]:
        """What the stage before passes on; not asked of the first stage."""

    def sends(self, microbatch: int) -> Sequence[Meta]:
        """What the next stage gets; not asked of the last one."""

    def forward(self, microbatch: int, received: Tensors) -> Tensors:
        """What the next stage gets; `()` on the last one."""

    def roots(self, microbatch: int) -> tuple[Tensors, Sequence[torch.Tensor | None]]:
        """On the last stage: what backward starts from, with gradients as torch.autograd.backward
        takes them. Empty where nothing was to be differentiated."""

    def soon(self, microbatch: int) -> None:
        """Backward of the microbatch is so near that what it needs should be there."""

    def backward(
        self, microbatch: int, ends: Tensors, seeds: Sequence[torch.Tensor | None]
    ) -> None:
        """As torch.autograd.backward."""

    def done(self, microbatch: int) -> None:
        """Backward of the microbatch is over; without backward, forward is."""
