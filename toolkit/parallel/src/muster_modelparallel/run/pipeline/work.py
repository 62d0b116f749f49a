"""A stage of this rank at work: what the executor of a pipeline asks of it, by microbatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from muster_modelparallel.errors import add_note
from muster_modelparallel.model.random import Draw
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.run.offload import SavedTensors
from muster_modelparallel.run.pipeline.protocols import PreparedCall, StageRun, Tensors
from muster_modelparallel.run.pipeline.suspended import NOTHING
from muster_modelparallel.run.pipeline.tasks import Task


class Steps(Protocol):
    """What a stage needs of the step that it works for (`steps.CutSteps`)."""

    def prepared(self, number: int, task: Task) -> PreparedCall:
        """The stages for call `number`, which the step function is brought to if it is new."""

    def draw(self, number: int) -> Draw:
        """The streams of random numbers of that call."""

    def saving(self, received: Tensors) -> AbstractContextManager[SavedTensors] | None:
        """Inside, what a forward pass saves leaves the device; None where it stays."""

    def begin_backward(self, stage: int, number: int) -> None:
        """Called before each backward pass."""

    def measuring(self, stage: int, backward: bool) -> AbstractContextManager[None]:
        """Around the work of a stage."""

    def is_known(self, stage: int, task: Task) -> bool:
        """Whether the stage's work in that task may be prepared now."""

    def around(self, task: Task, forward: Callable[[], None]) -> None:
        """Calls `forward` at the function's call of the model, if it is not there already."""

    def returned(self, task: Task, output: Any) -> None:
        """The last stage has the model's output; the step function goes on with it."""


class Work:
    """A stage of this rank, at work on the tasks of a step."""

    def __init__(self, steps: Steps, stage: int, is_last: bool, tasks: Mapping[int, Task]) -> None:
        self._steps = steps
        self._stage = stage
        self._is_last = is_last
        self._tasks = tasks
        self._due: set[int] = set()  # backward is so near that nothing leaves

    def is_known(self, microbatch: int) -> bool:
        """Whether what it receives may be asked now."""
        return self._steps.is_known(self._stage, self._tasks[microbatch])

    def around(self, microbatch: int, forward: Callable[[], None]) -> None:
        """Calls `forward` where the step function calls the model."""
        self._steps.around(self._tasks[microbatch], forward)

    def soon(self, microbatch: int) -> None:
        """What backward needs comes back, or stays."""
        self._due.add(microbatch)
        saved = self._tasks[microbatch].saved.get((self._stage, microbatch))
        if saved is not None:
            saved.load()

    def receives(self, microbatch: int) -> Sequence[Meta]:
        """From the stage before."""
        return self._run(microbatch).receives

    def sends(self, microbatch: int) -> Sequence[Meta]:
        """To the next stage."""
        return self._run(microbatch).sends

    def forward(self, microbatch: int, received: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The stage's, in the modes of the call."""
        run, task = self._run(microbatch), self._tasks[microbatch]
        assert task.model_call is not None and task.modes is not None
        try:
            with (
                task.modes.held(),
                self._steps.measuring(self._stage, backward=False),
                self._saving(microbatch, received),
            ):
                output = run.forward(task.model_call, self._steps.draw(microbatch), received)
        except Exception as error:
            add_note(error, f"in stage {self._stage}, microbatch {task.microbatch.index}")
            raise
        if not self._is_last:
            return output  # type: ignore[no-any-return]
        self._steps.returned(task, output)
        return ()

    def roots(
        self, microbatch: int
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]]:
        """What `model.backward` was given; once, with the last call."""
        task = self._tasks[microbatch]
        roots, seeds = task.roots, task.seeds
        task.roots, task.seeds = [], []
        return roots, seeds

    def backward(
        self,
        microbatch: int,
        ends: Sequence[torch.Tensor],
        seeds: Sequence[torch.Tensor | None],
    ) -> None:
        """As torch.autograd.backward."""
        self._steps.begin_backward(self._stage, microbatch)
        with self._steps.measuring(self._stage, backward=True):
            torch.autograd.backward(ends, seeds)

    def done(self, microbatch: int) -> None:
        """Frees what the stage's forward kept."""
        self._tasks[microbatch].saved.pop((self._stage, microbatch), None)
        self._run(microbatch).forget(self._steps.draw(microbatch))

    def _saving(
        self, microbatch: int, received: Sequence[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Inside, what is saved for backward leaves, where that is far enough."""
        stays = microbatch in self._due or not torch.is_grad_enabled()
        saving = None if stays else self._steps.saving(received)
        return NOTHING if saving is None else self._kept(microbatch, saving)

    @contextmanager
    def _kept(
        self, microbatch: int, saving: AbstractContextManager[SavedTensors]
    ) -> Iterator[None]:
        with saving as saved:
            self._tasks[microbatch].saved[self._stage, microbatch] = saved
            yield

    def _run(self, number: int) -> StageRun:
        """The stage for the kind of call that the step function makes in that microbatch."""
        return self._steps.prepared(number, self._tasks[number]).stages[self._stage]
