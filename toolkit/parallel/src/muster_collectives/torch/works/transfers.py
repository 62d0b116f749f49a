"""Sends and receives of CPU tensors, and their futures.

The core reads and writes the memory of tensors by itself until a transfer is over, so it is kept
until then, even if the work itself is dropped. Threads of the group settle each future when its
transfer ends.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from muster_collectives.binding.requests import Ends, Request
from muster_collectives.runtime.errors import CollectiveError, MismatchError
from muster_collectives.runtime.types import Code, Status
from muster_collectives.torch.ops import views
from muster_collectives.torch.ops.lowered import NotLoweredError, is_as_it_lies, plain
from muster_collectives.torch.steady import LEAST_BYTES, SteadyMemory
from muster_collectives.torch.works.base import (
    MusterWork,
    SettableFuture,
    late,
    leave_alone,
    limit_s,
)

_LONGEST_S = threading.TIMEOUT_MAX
_SPARE = 2  # threads that wait at most; a second one, so that none is made for each end


class Follower:
    """Threads that settle the futures of one group's transfers. Threads begin with the first
    future and end with the group; they are daemons and never keep a process alive.

    Callbacks of a future run on the thread that settles it, and may wait for other futures: as
    long as one is pending, a thread waits for the next end."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._settles: dict[Request, Callable[[], None]] = {}
        self._changing = threading.Lock()
        self._waiting: set[threading.Thread] = set()

    def follow(self, request: Request, settle: Callable[[], None]) -> None:
        """`settle` is called once, when `request` has ended: by a thread, or at once. Raises what
        it raises then, or RuntimeError where no thread can start; nothing is followed then."""
        if request.done():  # always so in a child of the process, where there is no such thread
            settle()
            return
        try:
            with self._changing:
                self._settles[request] = settle
                self._keep_waiting()
            is_told = self._ends.follow(request)
        except CollectiveError:  # it was closed meanwhile; or no memory, and this thread waits
            is_told = False
        except BaseException:
            self._settles.pop(request, None)
            raise
        if not is_told:
            own = self._settles.pop(request, None)
            if own is not None:
                own()

    def _keep_waiting(self) -> None:
        """Under the lock."""
        if not self._settles or self._waiting:
            return
        thread = threading.Thread(target=self._run, name="muster-transfers", daemon=True)
        self._waiting.add(thread)
        try:
            thread.start()
        except BaseException:
            self._waiting.discard(thread)
            raise

    def _run(self) -> None:
        is_open = True
        while is_open:
            request = self._ends.next()
            is_open = request is not None
            with self._changing:
                self._waiting.discard(threading.current_thread())
                ended = [request] if request is not None else list(self._settles)
                settles = [self._settles.pop(each, None) for each in ended]
                with suppress(RuntimeError):  # no other thread can start: this one comes back
                    self._keep_waiting()
            for settle in settles:
                if settle is not None:
                    with suppress(BaseException):  # it is in the future already
                        settle()
            del request, ended, settles  # what they hold shall not live until the next one
            settle = None
            with self._changing:
                if len(self._waiting) >= _SPARE:
                    return
                self._waiting.add(threading.current_thread())


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
            raise late("a send or a receive for which another thread waits", seconds)
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

    _source_rank = source_rank

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
                settable.settle(None, RuntimeError(f"the wait for it has failed: {error!r}"))
                raise
            settable.settle(None, error)
        else:
            settable.settle(self.result())


leave_alone(P2PWork)


_TAGS = 0xFFFFFFFF
_SWEEP = 64  # so many at least before all are looked at


class Transfers:
    """The sends and receives of one group that are under way."""

    def __init__(self, steady: SteadyMemory) -> None:
        self._communicator = steady.core
        self._steady = steady
        self._follower = Follower(steady.core.ends)
        self._kept: dict[int, P2PWork] = {}
        self._posting: dict[object, torch.Tensor] = {}
        self._sweep_at = _SWEEP
        self._changing = threading.Lock()  # sends and receives may come from any thread

    def send(self, tensor: Any, peer: int, tag: int, timeout_s: float) -> P2PWork:
        """Raises TypeError for a tensor that is not dense."""
        dense = _dense(tensor).contiguous().resolve_conj().resolve_neg()
        if dense.nbytes >= LEAST_BYTES:
            self._steady.note(dense, sends=True)
        return self._post(self._communicator.post_send, dense, dense, False, peer, tag, timeout_s)

    def recv_anysource(self, tensor: Any, tag: int, timeout_s: float) -> P2PWork:
        """As `recv`, from any rank."""
        return self.recv(tensor, None, tag, timeout_s)

    def recv(self, tensor: Any, peer: int | None, tag: int, timeout_s: float) -> P2PWork:
        """Raises TypeError for a tensor that is not dense."""
        dense = _dense(tensor)
        staged = dense
        if not is_as_it_lies(dense):
            staged = torch.empty(dense.shape, dtype=dense.dtype, device="cpu")
        return self._post(self._communicator.post_recv, dense, staged, True, peer, tag, timeout_s)

    def _post(
        self, post: Callable[..., Request], tensor: torch.Tensor, staged: torch.Tensor,
        is_receive: bool, peer: int | None, tag: int, timeout_s: float,
    ) -> P2PWork:  # fmt: skip
        length, place = staged.numel() * staged.element_size(), object()
        self._posting[place] = staged  # stays there where a signal handler raises before it is kept
        try:
            request = post(staged.data_ptr(), length, peer, tag & _TAGS, timeout_s)
        except CollectiveError:
            del self._posting[place]
            raise
        expects = length if is_receive else None
        work = P2PWork(request, tensor, staged, expects, self._drop, self._follower)
        with self._changing:
            self._let_go()
            if is_receive or not request.done():
                self._kept[id(work)] = work
        del self._posting[place]
        return work

    def clear(self) -> None:
        """After the core's group has ended: nobody reads or writes any more."""
        with self._changing:
            self._kept.clear()
            self._posting.clear()

    def _let_go(self) -> None:
        """Under the lock. What nobody waits for ends in about the order of its beginning."""
        while self._kept:
            first = next(iter(self._kept))
            if not self._kept[first].has_ended():
                break
            del self._kept[first]
        if len(self._kept) >= self._sweep_at:
            self._kept = {key: each for key, each in self._kept.items() if not each.has_ended()}
            self._sweep_at = max(_SWEEP, 2 * len(self._kept))

    def _drop(self, work: P2PWork) -> None:
        with self._changing:
            self._kept.pop(id(work), None)


def _dense(tensor: Any) -> torch.Tensor:
    try:
        return plain(tensor)
    except NotLoweredError as error:
        raise TypeError(f"{error} cannot be sent or received") from None
