"""Steps of a model that is cut into stages: microbatches run through the ranks as a pipeline.

The step function runs on every rank, once for each microbatch, with the arguments of the pipeline's
first rank and the same random numbers. It stops at `model(...)`. On the rank with the last stage it
goes on as soon as the output is there; `model.backward` there says what backward starts from. On
other ranks it goes on when all microbatches are through, with outputs that are fetched where they
are read.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from muster_modelparallel.errors import SplitError, StepError, add_note
from muster_modelparallel.model.nests import filled, leaves, map_tensors
from muster_modelparallel.model.random import Draw, kept_random_state
from muster_modelparallel.model.trace import Meta
from muster_modelparallel.run.delivery import Delivery
from muster_modelparallel.run.pipeline import Pipeline
from muster_modelparallel.run.session import Microbatch, Session
from muster_modelparallel.run.slicing import Call
from muster_modelparallel.run.stages import CutModel, ModelCall, PreparedCall, StageRun
from muster_modelparallel.run.suspended import Ended, Modes, SuspendedCall, SuspendedCalls
from muster_modelparallel.run.undelivered import Undelivered, fetched
from muster_modelparallel.run.waits import Waits
from muster_modelparallel.shape.schedule import Kind, Schedule, in_waves
from muster_modelparallel.shape.topology import GroupKind

_log = logging.getLogger("muster_modelparallel")
_FORWARD = frozenset([Kind.FORWARD])
_BACKWARD = frozenset(Kind) - _FORWARD
_SMALL_BYTES = 1 << 16
_FUNCTION = 1 << 40  # streams of random numbers of the step function, beyond those of units


class _Want(NamedTuple):
    """A step function reads the output of that number in its microbatch."""

    place: int


@dataclass(frozen=True, slots=True)
class _Habit:
    """What a step function did so far: calls of the model for each microbatch, None where that
    was not always the same; whether it called backward; which outputs ranks without the last stage
    read."""

    calls: int | None
    backward: bool
    wanted: frozenset[int] = frozenset()


class _Agreed(NamedTuple):
    """What all ranks of the pipeline know of one another's calls."""

    ended: bool
    called: bool
    backward: bool
    wanted: tuple[int, ...]


@dataclass(slots=True)
class _Output:
    """A tensor that the model returned in a microbatch; None where it was not delivered."""

    meta: Meta
    tensor: torch.Tensor | None = None
    version: int = 0

    def keep(self, tensor: torch.Tensor) -> None:
        """On the last stage, before the step function may change it: small ones are copied."""
        held = tensor.detach()
        self.tensor = held.clone() if held.nbytes <= _SMALL_BYTES else held
        self.version = self.tensor._version

    def check(self) -> None:
        """Raises StepError where it is not what the model returned any more."""
        if self.tensor is not None and self.tensor._version != self.version:
            raise StepError(
                f"the step function changed an output of the model of shape {self.meta.shape} in "
                "place, which other ranks read as well",
                "make a new tensor: out = out / 2 in place of out /= 2",
            )


@dataclass(slots=True)
class _Task:
    """The step function at work on a microbatch. `said`: where it stopped."""

    microbatch: Microbatch
    call: SuspendedCall
    stream: Draw
    said: Any = None
    calls: int = 0
    segment: int = 0
    model_call: ModelCall | None = None
    modes: Modes | None = None
    prepared: PreparedCall | None = None
    outputs: list[_Output] = field(default_factory=list)
    roots: list[torch.Tensor] = field(default_factory=list)
    seeds: list[torch.Tensor | None] = field(default_factory=list)


class CutSteps:
    """The steps of a process whose model is cut. Every call is collective over the pipeline."""

    def __init__(self, session: Session) -> None:
        mesh = session.mesh
        group = mesh.group(GroupKind.PP)
        self._session = session
        self._group = group
        self._device = mesh.device
        self._waits = Waits()
        self._pipeline = Pipeline(group, mesh.device, self._waits)
        self._delivery = Delivery(group, mesh.device, self._waits)
        ranks = dist.get_process_group_ranks(group)
        self._place = ranks.index(mesh.rank)
        self._me = f"rank {mesh.rank}"
        self._others = ", ".join(f"rank {rank}" for rank in ranks if rank != mesh.rank)
        self._suspended = SuspendedCalls()
        self._habits: dict[Hashable, _Habit] = {}
        self._steps, self._seed = 0, 0
        self._current: _Task | None = None
        self._stack = ExitStack()
        self._installed: list[PreparedCall] = []
        self._prepared: dict[int, PreparedCall] = {}  # by number of the call
        self.has_backward = False  # in the last step
        self.has_stray = False  # gradients without `model.backward`, on any rank

    def step(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
        cut: Callable[[tuple[Any, ...], Mapping[str, Any]], list[Call]],
    ) -> list[Any]:
        """What the function returned for each microbatch, the same values on all ranks of the
        pipeline. Raises as StepFunction does, and StepError where the function calls the model in
        a way that cannot be followed."""
        modes = (self._model.module.training, torch.is_grad_enabled())
        (args, kwargs), header = self._delivery.arguments(arguments, name, modes)
        calls = cut(args, kwargs)
        self._steps, self._seed = self._steps + 1, header.seed
        tasks = [
            _Task(
                Microbatch(index, len(calls)),
                self._suspended.begin(self._body(function, call)),
                self._draw(index),
            )
            for index, call in enumerate(calls)
        ]
        model = self._model
        key = (function, *modes)
        habit = self._habits.get(key)
        try:
            with kept_random_state(), ExitStack() as self._stack:
                if habit is None or habit.calls != 1:
                    found = self._one_by_one(tasks)
                else:
                    found = self._as_pipeline(tasks, habit)
        finally:
            for task in tasks:
                task.call.abandon()
            self._pipeline.clear()
            self._installed.clear()
            self._prepared.clear()
        self.has_backward = found.backward and torch.is_grad_enabled()
        if model.partitioned:
            if habit is None and found.calls != 1:
                _log.warning(
                    "step function %s calls the model %s for a microbatch: its microbatches run "
                    "one after the other, not as a pipeline", name,
                    "not always as often" if found.calls is None else f"{found.calls} times",
                )  # fmt: skip
            self._habits[key] = found
        return [task.said.value for task in tasks]

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The model's output, for a step function that runs here; called on its thread."""
        task, model = self._current, self._model
        assert task is not None
        modes = Modes.now()
        if not model.partitioned and not modes.grad:
            return model.module(*args, **kwargs)  # evaluation before anything is trained
        given = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if task.calls and any(isinstance(one, Undelivered) or one.grad_fn for one in given):
            raise StepError(
                "the output of one call of the model was given to another one",
                "put both calls into the model, so that gradients flow through it",
            )
        task.modes = modes
        asked = ModelCall(args, kwargs, modes.grad, model.module.training, modes.autocast)
        return task.call.ask(asked)

    def backward(
        self, tensors: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]
    ) -> None:
        """Backward is to start from these; on ranks without the last stage it does nothing."""
        task = self._current
        assert task is not None
        if self._place == self._last_place:
            task.roots += tensors
            task.seeds += grads

    @property
    def _model(self) -> CutModel:
        model = self._session.model
        assert model is not None
        return model  # type: ignore[return-value]

    @property
    def _last_place(self) -> int:
        """Of the rank with the last stage, in the pipeline."""
        rank_of = self._model.rank_of
        return rank_of[-1]

    def _body(self, function: Callable[..., Any], call: Call) -> Callable[[SuspendedCall], Any]:
        def run(_: SuspendedCall) -> Any:
            return map_tensors(fetched, function(*call.args, **call.kwargs))

        return run

    def _go(self, task: _Task, answer: Any = None) -> None:
        """Lets the step function run to where it stops next."""
        self._session.microbatch = task.microbatch
        self._current = task
        if not isinstance(task.said, _Want):
            task.stream.unit(_FUNCTION + task.segment)
            task.segment += 1
        task.said = task.call.go_on(answer)
        self._session.microbatch = None
        self._current = None
        if isinstance(task.said, ModelCall):
            task.model_call = task.said

    def _one_by_one(self, tasks: Sequence[_Task]) -> _Habit:
        """Each microbatch goes through all stages before the next one begins, whatever the step
        function does; so one learns what it does."""
        first, counts, backward, wanted = 0, set[int](), False, set[int]()
        for task in tasks:
            self._go(task)
            agreed, _ = self._agree([task])
            while agreed.called:
                number = first + task.calls
                task.calls += 1
                self._prepare(task)
                self._run(self._schedule(1), {number: task}, _FORWARD, number)
                self._hand_over([task])
                agreed, more = self._agree([task])
                wanted |= more
            if agreed.backward:
                backward = True
                for number in reversed(range(first, first + task.calls)):
                    self._run(self._schedule(1), {number: task}, _BACKWARD, number)
            self._pipeline.clear()
            first += task.calls
            counts.add(task.calls)
        return _Habit(counts.pop() if len(counts) == 1 else None, backward, frozenset(wanted))

    def _as_pipeline(self, tasks: Sequence[_Task], habit: _Habit) -> _Habit:
        """All microbatches in the order of the schedule."""
        by_number = dict(enumerate(tasks))
        grad = torch.is_grad_enabled()
        if habit.backward and grad:
            schedule = self._model.schedule(len(tasks))
            self._run(schedule, by_number, frozenset(Kind), 0)
        else:
            schedule = self._schedule(len(tasks))
            self._run(schedule, by_number, _FORWARD, 0)
        self._hand_over(tasks, habit.wanted)
        agreed, wanted = self._agree(tasks)
        if agreed.called:
            raise self._called_again(tasks[0])
        if agreed.backward and not (habit.backward and grad):
            self._run(schedule, by_number, _BACKWARD, 0)
        return _Habit(1, habit.backward or agreed.backward, habit.wanted | wanted)

    def _schedule(self, microbatches: int) -> Schedule:
        """All forwards, then all backwards."""
        return _in_waves(tuple(self._model.rank_of), microbatches)

    def _prepare(self, task: _Task) -> PreparedCall:
        """The stages for the call of the model at which the function stopped."""
        assert task.model_call is not None
        if not self._model.partitioned:
            self._model.partition(task.model_call)
        prepared = task.prepared = self._model.prepare(task.model_call)
        if prepared not in self._installed:
            self._installed.append(prepared)
            self._stack.enter_context(prepared.installed())
        metas = (leaf.meta for leaf in prepared.outputs)
        task.outputs += [_Output(meta) for meta in metas if meta is not None]
        return prepared

    def _run(
        self, schedule: Schedule, tasks: Mapping[int, _Task], kinds: frozenset[Kind], first: int
    ) -> None:
        last = len(schedule.rank_of) - 1
        mine = [stage for stage, place in schedule.rank_of.items() if place == self._place]
        works = {stage: _Work(self, stage, stage == last, tasks) for stage in mine}
        call = self._begun(next(iter(tasks.values()))).model_call
        assert call is not None
        self._pipeline.run(schedule, works, kinds, first, call.grad)

    def _begun(self, task: _Task) -> _Task:
        """At the call of the model, whose stages are known."""
        if task.prepared is None:
            self._go(task)
            if not isinstance(task.said, ModelCall):
                raise StepError(
                    "the step function did not call the model in a microbatch, but did before",
                    "call the model once for each microbatch, in every step",
                )
            task.calls = 1
            self._prepare(task)
        return task

    def prepared(self, number: int, task: _Task) -> PreparedCall:
        """The stages for call `number`, which is the task's last one if it is new."""
        if number not in self._prepared:
            found = self._begun(task).prepared
            assert found is not None
            self._prepared[number] = found
        return self._prepared[number]

    def _draw(self, number: int) -> Draw:
        return Draw(self._seed, self._steps, number)

    def _returned(self, task: _Task, output: Any) -> None:
        """The last stage has the model's output."""
        assert task.prepared is not None
        found = [leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
        metas = [leaf.meta for leaf in task.prepared.outputs if leaf.meta is not None]
        here = [(tuple(tensor.shape), tensor.dtype) for tensor in found]
        if here != [(meta.shape, meta.dtype) for meta in metas]:
            raise SplitError(
                f"the model returned tensors {here}, but {[meta.shape for meta in metas]} when it "
                "was probed",
                "what it returns must not depend on the values of the data; use one partition",
            )
        places = task.outputs[len(task.outputs) - len(found) :]
        for place, tensor in zip(places, found, strict=True):
            place.keep(tensor)
        self._go(task, output)

    def _hand_over(self, tasks: Sequence[_Task], wanted: frozenset[int] = frozenset()) -> None:
        """Ranks without the last stage get the outputs, and go on."""
        self._deliver(tasks, sorted(wanted))
        if self._place == self._last_place:
            return
        for task in tasks:
            self._go(task, self._output(task))

    def _output(self, task: _Task) -> Any:
        prepared = task.prepared
        assert prepared is not None
        count = sum(leaf.meta is not None for leaf in prepared.outputs)
        start = len(task.outputs) - count
        places = iter(range(start, len(task.outputs)))
        values = [
            leaf.value if leaf.meta is None else self._tensor(task, next(places))
            for leaf in prepared.outputs
        ]
        return filled(prepared.tree, iter(values))

    def _tensor(self, task: _Task, place: int) -> torch.Tensor:
        output = task.outputs[place]

        def fetch() -> torch.Tensor:
            if output.tensor is None:
                if self._current is not task:
                    raise StepError(
                        "an output of the model was read after the step in which it was made",
                        "return it from the step function",
                    )
                state = torch.get_rng_state()
                task.call.ask(_Want(place))
                torch.set_rng_state(state)
            assert output.tensor is not None
            return output.tensor

        return output.tensor if output.tensor is not None else Undelivered.of(output.meta, fetch)

    def _agree(self, tasks: Sequence[_Task]) -> tuple[_Agreed, set[int]]:
        """What all ranks say of these tasks, once everything has been delivered that one of them
        wants; and what that was. Raises StepError where they do not do the same."""
        all_wanted: set[int] = set()
        while True:
            agreed = self._said(tasks)
            if not agreed.wanted:
                break
            all_wanted.update(agreed.wanted)
            self._deliver(tasks, agreed.wanted)
            for task in tasks:
                if isinstance(task.said, _Want):
                    self._go(task)
        if agreed.ended and agreed.called:
            raise StepError(
                "the step function called the model on some ranks of the pipeline and ended on "
                "others",
                "let it depend on its arguments alone, which all ranks have from the first one",
            )
        return agreed, all_wanted

    def _said(self, tasks: Sequence[_Task]) -> _Agreed:
        word = [0] * (4 + len(tasks[0].outputs))
        word[3] = self._model.is_stray
        for task in tasks:
            word[0] |= isinstance(task.said, Ended)
            word[1] |= isinstance(task.said, ModelCall)
            word[2] |= bool(task.roots)
            if isinstance(task.said, _Want):
                word[4 + task.said.place] = 1
        said = torch.tensor(word, device=self._device)
        with self._waits.waiting(f"{self._me} waits for the others, {self._others}, in a step"):
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        ended, called, backward, stray, *wanted = said.tolist()
        self.has_stray = bool(stray)
        places = tuple(place for place, flag in enumerate(wanted) if flag)
        return _Agreed(bool(ended), bool(called), bool(backward), places)

    def _deliver(self, tasks: Sequence[_Task], places: Sequence[int]) -> None:
        """From the last stage to all ranks."""
        if not places:
            return
        outputs = [task.outputs[place] for task in tasks for place in places]
        if self._place == self._last_place:
            for one in outputs:
                one.check()
        tensors = [
            torch.empty(one.meta.shape, dtype=one.meta.dtype, device=self._device)
            if one.tensor is None
            else one.tensor
            for one in outputs
        ]
        with self._waits.waiting(f"{self._me} waits for outputs of the last stage"):
            self._delivery.tensors(tensors, self._last_place)
        for output, tensor in zip(outputs, tensors, strict=True):
            if output.tensor is None:  # of a graph, as the real one: no leaf, which code may change
                needs = output.meta.requires_grad
                output.tensor = tensor.requires_grad_().clone() if needs else tensor

    def _called_again(self, task: _Task) -> StepError:
        return StepError(
            f"microbatch {task.microbatch.index}: the step function called the model a second "
            "time, but once in the steps before",
            "make it a step function of its own, or call the model as often in every step",
        )


_in_waves = functools.lru_cache(maxsize=64)(in_waves)


class _Work:
    """A stage of this rank, at work on the tasks of a step."""

    def __init__(
        self, steps: CutSteps, stage: int, is_last: bool, tasks: Mapping[int, _Task]
    ) -> None:
        self._steps = steps
        self._stage = stage
        self._is_last = is_last
        self._tasks = tasks

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
            with task.modes.held():
                output = run.forward(task.model_call, self._steps._draw(microbatch), received)
        except Exception as error:
            add_note(error, f"in stage {self._stage}, microbatch {task.microbatch.index}")
            raise
        if not self._is_last:
            return output  # type: ignore[no-any-return]
        self._steps._returned(task, output)
        return ()

    def roots(
        self, microbatch: int
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]]:
        """What `model.backward` was given; once, with the last call."""
        task = self._tasks[microbatch]
        roots, seeds = task.roots, task.seeds
        task.roots, task.seeds = [], []
        return roots, seeds

    def done(self, microbatch: int) -> None:
        """Frees what the stage's forward kept."""
        self._run(microbatch).forget(self._steps._draw(microbatch))

    def _run(self, number: int) -> StageRun:
        return self._steps.prepared(number, self._tasks[number]).stages[self._stage]
