"""What a collective returns: `dist.Work` objects.

CompletedWork  done before it was returned; the usual case
QueuedWork     queued; the first waiter runs it, else the core's thread
P2PWork        a send or a receive under way
CoalescedWork  several works as one
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.futures import Future

from muster_collectives.binding.async_calls import Async
from muster_collectives.binding.requests import Request
from muster_collectives.runtime.errors import CollectiveTimeout, MismatchError
from muster_collectives.runtime.types import Code, Status
from muster_collectives.torch.ops import views
from muster_collectives.torch.ops.untraced import leave_alone
from muster_collectives.torch.works.base import MusterWork, limit_s
from muster_collectives.torch.works.follower import Follower
from muster_collectives.torch.works.settable import SettableFuture

__all__ = ["CoalescedWork", "CompletedWork", "P2PWork", "QueuedWork"]

_LONGEST_S = threading.TIMEOUT_MAX
_CLAIMS = threading.Lock()  # held for two assignments: who sets the result of a future


def _late(what: str, seconds: float | None) -> CollectiveTimeout:
    return CollectiveTimeout(
        f"{what} is not done, after {seconds} s",
        "wait longer, or look at the other ranks: the operation goes on",
        code=Code.ETIMEOUT,
    )


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
            self._settle(settable)

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
            raise _late("an operation that was begun with async_op", seconds)
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
                self._settle(settable)
            elif self._at_once():
                self._help_out(self, None)
        return self._settable.future

    def _settle(self, settable: SettableFuture) -> None:
        if self._error is not None:
            settable.set_error(self._error)
        else:
            settable.set_result(self.result())


class P2PWork(MusterWork):
    """A send or a receive. `tensor` lives as long as this; a receive into a tensor that is not
    contiguous goes through `staged`. `when_over` is told once somebody has waited for it."""

    def __init__(
        self,
        request: Request,
        tensor: torch.Tensor,
        staged: torch.Tensor,
        expects_bytes: int | None,
        when_over: Callable[[P2PWork], None],
        follower: Follower,
    ) -> None:
        super().__init__([tensor])
        self._request = request
        self._follower = follower
        self._when_over = when_over
        self._tensor = tensor
        self._staged = staged
        self._expects_bytes = expects_bytes
        self._peer = -1
        self._over = False
        self._future: Any = None
        self._once = threading.Lock()
        self._making = threading.RLock()  # its future

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True. A `timeout` bounds this wait alone; raises what the transfer ended with."""
        seconds, began = limit_s(timeout), time.monotonic()
        if not self._once.acquire(timeout=-1 if seconds is None else min(seconds, _LONGEST_S)):
            raise _late("a send or a receive for which another thread waits", seconds)
        try:
            if not self._over:
                spent_s = time.monotonic() - began
                self._finish(None if seconds is None else max(0.0, seconds - spent_s))
        finally:
            self._once.release()
        if self._error is not None:
            raise self._error
        return True

    def _finish(self, timeout_s: float | None) -> None:
        try:
            self._take(self._request.wait(timeout_s))
        except BaseException as error:
            if not self._request.done():  # this wait alone has ended: its limit, Ctrl-C
                raise
            self._error = error
        self._over = True
        self._when_over(self)

    def _take(self, status: Status) -> None:
        self._peer = status.peer
        if self._expects_bytes is None:
            return
        if status.bytes != self._expects_bytes:
            self._error = MismatchError(
                f"a receive of {self._expects_bytes} bytes from rank {status.peer} (tag "
                f"{status.tag}) got {status.bytes} bytes",
                "send and receive tensors of one size and dtype",
                ranks=(status.peer,), code=Code.EMISMATCH,
            )  # fmt: skip
        elif self._staged is not self._tensor:
            views.write(self._tensor, self._staged.view(self._tensor.shape))

    def has_ended(self) -> bool:
        """Whether the core is done with the memory."""
        return self._over or self._request.done()

    def is_completed(self) -> bool:
        """A transfer that has ended is taken as `wait` takes it: what came is in the tensor, and
        its failure is known."""
        if not self._over and self._request.done() and self._once.acquire(blocking=False):
            try:
                if not self._over:
                    self._finish(None)
            finally:
                self._once.release()
        return self._over

    def source_rank(self) -> int:
        return self._peer

    def _source_rank(self) -> int:
        return self._peer

    def get_future(self) -> Any:
        """Settled by the group's follower: nothing else looks at a transfer until someone waits."""
        with self._making:
            if self._future is None:
                settable = SettableFuture()
                self._follower.follow(self._request, functools.partial(self._settle, settable))
                self._future = settable.future
            return self._future

    def _settle(self, settable: SettableFuture) -> None:
        try:
            self.wait()
        except BaseException as error:
            if not self._over:  # the wait alone has ended
                settable.set_error(RuntimeError(f"the wait for it has failed: {error!r}"))
                raise
            settable.set_error(error)
        else:
            settable.set_result(self.result())


class CoalescedWork(MusterWork):
    """Several works as one. Done when all of `works` are; raises the first failure."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__(())
        self._works = tuple(works)
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            if timeout is None:
                work.wait()
            else:
                work.wait(timeout)
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


leave_alone(CompletedWork, QueuedWork, P2PWork, CoalescedWork)
