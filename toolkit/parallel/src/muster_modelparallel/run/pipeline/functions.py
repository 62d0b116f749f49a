"""Step functions at work: each runs to where it stops, on a thread of its own or straight on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from muster_modelparallel.model.nests import map_tensors
from muster_modelparallel.model.random import FUNCTION, Draw
from muster_modelparallel.run.pipeline.protocols import ModelCall
from muster_modelparallel.run.pipeline.suspended import (
    AbandonedError,
    StraightCall,
    SuspendedCall,
    SuspendedCalls,
)
from muster_modelparallel.run.pipeline.tasks import Task, Want
from muster_modelparallel.run.pipeline.undelivered import fetched
from muster_modelparallel.run.session import Microbatch, Session


class Functions:
    """Those of one process, of which one runs at a time. `current`: the task of that one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._suspended = SuspendedCalls()
        self.current: Task | None = None

    def task(self, microbatch: Microbatch, function: Callable[[], Any], stream: Draw) -> Task:
        """A function that has not begun; on a thread of its own, unless `straight` begins it."""
        call = self._suspended.begin(functools.partial(self._whole, function))
        return Task(microbatch, function, call, stream)

    def go(self, task: Task, answer: Any = None) -> None:
        """Lets it run to where it stops next."""
        assert isinstance(task.call, SuspendedCall)
        self.enter(task)
        task.said = task.call.go_on(answer)
        self.leave()
        if isinstance(task.said, ModelCall):
            task.model_call = task.said

    def straight(self, task: Task, answer: Callable[[Any], Any]) -> None:
        """Lets it run on this thread to its end. `answer` is asked what it asks, and may raise
        AbandonedError: it ends there, and `task.said` stays what `answer` has made it."""
        task.call = StraightCall(task.function, answer)
        self.enter(task)
        try:
            task.said = task.call.run()
        except AbandonedError:
            return
        self.leave()

    def fill(self, task: Task) -> None:
        """What a function that has run straight returned gets its values, as those that wait."""
        value = task.said.value
        returned = functools.partial(self._whole, lambda: value)
        self.current, task.said = task, None
        task.call = StraightCall(returned, _refused)
        try:
            task.said = task.call.run()
            self.leave()
        except AbandonedError:  # some of them have to be asked for
            task.call = self._suspended.begin(returned)
            self.go(task)

    def enter(self, task: Task) -> None:
        """Its function is to run now."""
        self._session.microbatch = task.microbatch
        self.current = task
        if not isinstance(task.said, Want):
            task.stream.at(FUNCTION + task.segment)
            task.segment += 1

    def leave(self) -> None:
        """None runs."""
        self._session.microbatch = None
        self.current = None

    def _whole(self, function: Callable[[], Any]) -> Any:
        """All of a step function: what it returns has its values."""
        task, value = self.current, function()
        assert task is not None
        task.has_returned = True
        return map_tensors(fetched, value)


def _refused(question: Any) -> Any:
    raise AbandonedError
