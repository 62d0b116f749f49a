"""What a collective returns: `dist.Work` objects.

CompletedWork  done before it was returned; the usual case
QueuedWork     queued; the first waiter runs it, else the core's thread
CoalescedWork  several works as one
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.futures import Future

from muster_collectives.binding.async_calls import Async
from muster_collectives.torch.works.base import (
    MusterWork,
    SettableFuture,
    late,
    leave_alone,
    limit_s,
)

_CLAIMS = threading.Lock()  # held for two assignments: who sets the result of a future


class CompletedWork(MusterWork):
    """The work of a call that is over; `outputs` is what its future carries. Nothing can go
    wrong with it any more."""

    def __init__(self, outputs: Sequence[Any] = ()) -> None:
        super().__init__(outputs)
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        if self._future is None:
            self._future = Future()
            self._future.set_result(self.result())
        return self._future


class QueuedWork(MusterWork):
    """A call in a group's operation queue. `perform` is called once, in its turn; `publish` once
    after it and outside of the turn, since it runs callbacks. `begun`: the core's thread runs its
    calls, and `action` is what is left to do after them. `is_held`: what comes after it waits
    for `action`."""

    def __init__(
        self,
        action: Callable[[], None],
        outputs: Sequence[Any],
        help_out: Callable[[QueuedWork, float | None], bool],
        at_once: Callable[[], bool],
        begun: Async | None,
        is_held: bool,
    ) -> None:
        super().__init__(outputs)
        self._action: Callable[[], None] | None = action
        self._begun = begun
        self.is_held = is_held
        self._help_out = help_out
        self._at_once = at_once
        self._over = False
        self._gate: threading.Event | None = None
        self._settable: SettableFuture | None = None

    # --- the lane's side

    def until_done(self) -> None:
        """Until its calls have ended, where the core's thread has begun them. Raises what a signal
        handler raises: it goes on then."""
        if self._begun is not None:
            self._begun.wait()

    def perform(self) -> None:
        action, self._action = self._action, None
        try:
            if action is not None:
                action()
        except BaseException as error:
            self._error = error

    def refuse(self, error: BaseException) -> None:
        """In place of `perform`: the group has ended. The core may still use its memory."""
        self._error = error
        if self._begun is None or self._begun.done():
            self._action = None

    def publish(self) -> None:
        with _CLAIMS:
            self._over = True
            settable, gate = self._settable, self._gate
        if gate is not None:
            gate.set()
        if settable is not None:
            settable.settle(self.result(), self._error)

    def until_over(self, timeout_s: float | None) -> bool:
        """Until another thread has published it; False after `timeout_s`."""
        with _CLAIMS:
            if self._over:
                return True
            if self._gate is None:
                self._gate = threading.Event()
            gate = self._gate
        return gate.wait(timeout_s)

    # --- the caller's side

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True. Raises what the operation ended with, CollectiveTimeout after `timeout`."""
        seconds = limit_s(timeout)
        if not self._over and not self._help_out(self, seconds):
            raise late("an operation that was begun with async_op", seconds)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._over

    def get_future(self) -> Any:
        """Carries the list of tensors."""
        if self._settable is None:
            settable = SettableFuture()
            with _CLAIMS:
                self._settable, over = settable, self._over
            if over:
                settable.settle(self.result(), self._error)
            elif self._at_once():
                self._help_out(self, None)
        return self._settable.future


class CoalescedWork(MusterWork):
    """Several works as one. Done when all of `works` are; raises the first failure."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__(())
        self._works = tuple(works)
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = () if timeout is None else (timeout,)
        for work in self._works:
            work.wait(*limit)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((each for each in (work.exception() for work in self._works) if each), None)

    def result(self) -> list[Any]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Any:
        if self._future is None:
            parts = torch.futures.collect_all([work.get_future() for work in self._works])
            self._future = parts.then(
                lambda done: [tensor for part in done.value() for tensor in part.value()]
            )
        return self._future


leave_alone(CompletedWork, QueuedWork, CoalescedWork)
