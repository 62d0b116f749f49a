"""Streams on which the legs of a call run side by side, and works whose `wait` orders streams and
does not stop the host. On processors all legs run in place.

One of those legs is an all-reduce through host memory, for slow networks and GPUs without peer
access: pieces go to pinned memory, are summed there by the host's group, and go back; the copies of
one piece overlap the sum of another. One thread has the sums, in the order of the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from muster_collectives.runtime.executor import SerialExecutor
from muster_collectives.torch.compress import group_calls
from muster_collectives.torch.ops import views
from muster_collectives.torch.works.base import MusterWork, SettableFuture, limit_s


class SideStream:
    """A side stream of one device; the caller's stream never waits for the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def on(self) -> AbstractContextManager[object]:
        """What is issued inside runs in this lane."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def follow(self, other: SideStream | None = None) -> None:
        """What is issued from now on runs after what is in the other lane (none: the caller's)."""
        if self._stream is None:
            return
        first = other._stream if other is not None else torch.cuda.current_stream(self.device)
        self._stream.wait_stream(first)

    def uses(self, tensors: Iterable[Tensor]) -> None:
        """Memory of the caller's is not given away while this lane works on it."""
        if self._stream is not None:
            for tensor in tensors:
                tensor.record_stream(self._stream)

    def mark(self) -> Any:
        """An event at this point of the lane; None on a processor."""
        return None if self._stream is None else self._stream.record_event()


class SideStreams:
    """Three lanes of a device, made at first use: into the node, between nodes, out of the node."""

    def __init__(self, device: torch.device) -> None:
        self.near, self.far, self.out = SideStream(device), SideStream(device), SideStream(device)

    def begin(self, tensors: Iterable[Tensor]) -> None:
        """Every lane starts after what the caller has issued so far."""
        held = list(tensors)
        for side_stream in (self.near, self.far, self.out):
            side_stream.follow()
            side_stream.uses(held)

    def end(self) -> SideStream:
        """A lane that is done when all are."""
        self.out.follow(self.near)
        self.out.follow(self.far)
        return self.out


class SideStreamWork(MusterWork):
    """A call that has been issued to side streams. `wait`: the caller's stream goes on after it."""

    def __init__(self, side_stream: SideStream, outputs: list[Tensor]) -> None:
        super().__init__(outputs)
        self._device = side_stream.device
        on_device = self._device.type == "cuda"
        self._future: Future[Any] = Future(devices=[self._device] if on_device else None)
        self._event: Any = None
        self._is_issued(side_stream, self._future.set_result)

    def _is_issued(self, side_stream: SideStream, settle: Callable[[Any], None]) -> None:
        """All of it is on that stream. The future records what its waiters' streams wait for."""
        self._event = side_stream.mark()
        with side_stream.on():
            settle(self._outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout  # nothing is waited for here
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event is None or bool(self._event.query())

    def get_future(self) -> Any:
        return self._future


class HostWork(SideStreamWork):
    """A call with a leg on the host. `wait` stands until that leg is over, then orders streams."""

    def __init__(self, device: torch.device, outputs: list[Tensor], timeout_s: float) -> None:
        MusterWork.__init__(self, outputs)
        self._device, self._timeout_s = device, timeout_s
        self._settable = SettableFuture(device)
        self._future, self._event = self._settable.future, None
        self._ended = threading.Event()

    def run(self, leg: Callable[[], SideStream]) -> None:
        """Called by the thread that has the host's leg, once."""
        try:
            self._is_issued(leg(), self._settable.settle)
        except Exception as error:
            self._error = error
            self._settable.settle(None, error)
        finally:
            self._ended.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = limit_s(timeout) or self._timeout_s
        if not self._ended.wait(seconds):
            raise TimeoutError(
                f"a host-staged collective of {self._device} is not done after {seconds:g} s; "
                "the error of the group that sums on the host names the ranks that have not come"
            )
        if self._error is not None:
            raise self._error
        return super().wait()

    def is_completed(self) -> bool:
        return self._ended.is_set() and super().is_completed()


_IDLE_S = 10.0  # then the thread ends; the next call starts another


# Reduces a contiguous host tensor in place over all ranks, in one thread at a time
HostSum = Callable[[Tensor, Any], None]


class GroupSum:
    """Sums by a group of its own that takes host tensors, the core's or gloo, which `make` makes
    when the first sum comes: all ranks come to that together."""

    def __init__(self, make: Callable[[], group_calls.Group]) -> None:
        self._make = make
        self.group: group_calls.Group = None  # None before the first sum

    def __call__(self, tensor: Tensor, op: Any) -> None:
        if self.group is None:
            self.group = self._make()
        group_calls.all_reduce(self.group, tensor, op).wait()


class HostStaging:
    """Reduces device tensors in host memory. Not for several threads at once: calls are made in the
    same order on all ranks."""

    def __init__(self, sums: HostSum, segment_bytes: int, timeout_s: float) -> None:
        self._sums, self._segment_bytes, self._timeout_s = sums, segment_bytes, timeout_s
        self._legs = SerialExecutor(
            "muster-host-staging", _IDLE_S, closed="the device path is closed",
            busy="a host-staged collective still runs",
        )  # fmt: skip

    def all_reduce(self, side_streams: SideStreams, tensor: Tensor, op: Any) -> HostWork:
        """In place, contiguous. Begins the copies; the rest happens beside the caller."""
        work = HostWork(tensor.device, [tensor], self._timeout_s)
        flat = tensor.view(-1)
        step = max(1, self._segment_bytes // tensor.element_size())
        pieces = [flat[begin : begin + step] for begin in range(0, flat.numel(), step)]
        side_streams.begin([tensor])
        staged = [self._copy_out(side_streams.near, piece) for piece in pieces]

        def leg() -> SideStream:
            for piece, (host, arrived) in zip(pieces, staged, strict=True):
                if arrived is not None:
                    arrived.synchronize()
                self._sums(host, op)
                with side_streams.out.on():
                    views.write(piece, host, non_blocking=True)
                # the allocator of pinned memory waits for the copy before it reuses it
            return side_streams.out

        self._legs.submit(lambda: work.run(leg))
        return work

    def close(self) -> None:
        """Ends the thread once its calls are done. Raises TimeoutError."""
        self._legs.close()

    def _copy_out(self, side_stream: SideStream, piece: Tensor) -> tuple[Tensor, Any]:
        on_device = piece.device.type == "cuda"
        host = torch.empty(piece.shape, dtype=piece.dtype, device="cpu", pin_memory=on_device)
        with side_stream.on():
            host.copy_(piece, non_blocking=True)
            return host, side_stream.mark()
