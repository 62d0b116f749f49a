"""`@step`: a function that does the work of one microbatch, called with a whole batch."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from muster_modelparallel.errors import StepError, add_note
from muster_modelparallel.run.outputs import detached, merged
from muster_modelparallel.run.session import Microbatch, Session, current
from muster_modelparallel.run.slicing import Call, Cuts, cut_arguments, read_cuts


class StepFunction:
    """A function that runs once for each microbatch of its arguments; made by `step`.

    In a class it is a method. `calls` counts how often it was called.
    """

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], cuts: Cuts, detach_outputs: bool) -> None:
        functools.update_wrapper(self, function)
        self.calls = 0
        self._function = function
        self._signature = inspect.signature(function)
        self._cuts = cuts
        self._detach = detach_outputs

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Cuts the arguments, runs the function for each microbatch in order, and merges what it
        returned (run/outputs.py).

        Raises NotStartedError before `init`; StepError for arguments that cannot be cut and for a
        call within a step function; and whatever the function raises, the very object, with a note
        of rank, step and microbatch under Python 3.11 and later.
        """
        session = current()
        if session.microbatch is not None:
            raise StepError(
                f"step function {self._name} was called within a step function",
                "call it from outside, or take @smp.step off the inner one",
            )
        count = session.config.microbatches
        is_cut = session.model is not None and session.model.is_cut
        calls = [] if is_cut else self._cut(args, kwargs, count)
        self.calls += 1
        if session.model is not None:
            session.model.begin_step(count)
        if is_cut:
            returned = self._run_cut(session, args, kwargs, count)
        else:
            returned = self._run(session, calls)
        if session.model is not None:
            session.model.end_step()
        return merged(returned)

    def _cut(self, args: Any, kwargs: Any, count: int) -> list[Call]:
        return cut_arguments(self._signature, self._cuts, args, kwargs, count)

    def _run_cut(self, session: Session, args: Any, kwargs: Any, count: int) -> list[Any]:
        """Through the stages of all ranks; outputs are detached elsewhere than on the last one."""
        if session.cut_steps is None:
            from muster_modelparallel.run.pipeline.steps import CutSteps

            session.cut_steps = CutSteps(session)
        try:
            returned = session.cut_steps.step(
                self._function, self._name, (args, kwargs),
                lambda args, kwargs: self._cut(args, kwargs, count),
            )  # fmt: skip
        except BaseException as error:
            self._annotate(error, session)
            raise
        finally:
            session.microbatch = None
        return [detached(value) if self._detach else value for value in returned]

    def _run(self, session: Session, calls: list[Call]) -> list[Any]:
        returned = []
        try:
            for index, call in enumerate(calls):
                session.microbatch = Microbatch(index, len(calls))
                value = self._function(*call.args, **call.kwargs)
                # at once: the graph of a microbatch must not live through the next one
                returned.append(detached(value) if self._detach else value)
        except BaseException as error:
            self._annotate(error, session)
            raise
        finally:
            session.microbatch = None
        return returned

    def _annotate(self, error: BaseException, session: Session) -> None:
        place = f"call {self.calls}, on rank {session.mesh.rank}"
        if session.microbatch is not None:
            index, count = session.microbatch.index, session.microbatch.count
            place = f"{place}, microbatch {index} (of {count}, counted from 0)"
        add_note(error, f"in step function {self._name}, {place}")

    @property
    def _name(self) -> str:
        return str(getattr(self._function, "__qualname__", self._function))


@overload
def step(fn: Callable[..., Any]) -> StepFunction: ...
@overload
def step(
    fn: None = None,
    *,
    non_split_inputs: Iterable[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Callable[[Callable[..., Any]], StepFunction]: ...
def step(
    fn: Callable[..., Any] | None = None,
    *,
    non_split_inputs: Iterable[str] | None = None,
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> StepFunction | Callable[[Callable[..., Any]], StepFunction]:
    """Decorates a function that does forward and backward (or forward alone) of a batch: it runs
    once for each of the job's `microbatches`. `@step`, `@step()` and `@step(...)` all work.

    non_split_inputs: names of arguments that are not cut. input_split_axes: the batch axis of
    arguments where it is not 0. detach_outputs: False keeps the graphs of returned tensors.
    Raises StepError for names that the function does not have. Source: the public documentation.
    """

    def decorate(function: Callable[..., Any]) -> StepFunction:
        if not callable(function):
            raise StepError(
                f"step was given {function!r} in place of a function",
                "write @smp.step(non_split_inputs=[...], input_split_axes={...})",
            )
        cuts = read_cuts(inspect.signature(function), non_split_inputs, input_split_axes)
        return StepFunction(function, cuts, detach_outputs)

    return decorate if fn is None else decorate(fn)
