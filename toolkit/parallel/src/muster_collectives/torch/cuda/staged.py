"""All-reduce of device tensors through host memory, for slow networks and GPUs without peer access.

Pieces go to pinned memory, are summed there by whoever sums on this host, and go back; the copies
of one piece overlap the sum of another. One thread has the sums, in the order of the calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from muster_collectives.torch.compress import verbs
from muster_collectives.torch.cuda.lanes import Lane, Lanes
from muster_collectives.torch.cuda.work import HostWork

_IDLE_S = 10.0  # then the thread ends; the next call starts another


class HostSum(Protocol):
    """Reduces a contiguous host tensor in place over all ranks, in one thread at a time."""

    def __call__(self, tensor: Tensor, op: Any) -> None: ...


class GroupSum:
    """Sums by a process group of its own that takes host tensors: the core's, or gloo."""

    def __init__(self, group: verbs.Group) -> None:
        self._group = group

    def __call__(self, tensor: Tensor, op: Any) -> None:
        verbs.all_reduce(self._group, tensor, op)


class HostStaging:
    """Not for several threads at once: calls are made in the same order on all ranks."""

    def __init__(self, sums: HostSum, segment_bytes: int, timeout_s: float) -> None:
        self._sums, self._segment_bytes, self._timeout_s = sums, segment_bytes, timeout_s
        self._legs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def all_reduce(self, lanes: Lanes, tensor: Tensor, op: Any) -> HostWork:
        """In place, contiguous. Begins the copies; the rest happens beside the caller."""
        work = HostWork(tensor.device, [tensor], self._timeout_s)
        flat = tensor.view(-1)
        step = max(1, self._segment_bytes // tensor.element_size())
        pieces = [flat[begin : begin + step] for begin in range(0, flat.numel(), step)]
        lanes.begin([tensor])
        staged = [self._copy_out(lanes.near, piece) for piece in pieces]

        def leg() -> Lane:
            with torch.no_grad():
                for piece, (host, arrived) in zip(pieces, staged, strict=True):
                    if arrived is not None:
                        arrived.synchronize()
                    self._sums(host, op)
                    with lanes.out.on():
                        piece.copy_(host, non_blocking=True)
                    # the allocator of pinned memory waits for the copy before it reuses it
            return lanes.out

        self._submit(lambda: work.run(leg))
        return work

    def close(self, timeout_s: float = 60.0) -> None:
        """Ends the thread once its calls are done. Raises TimeoutError."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                raise TimeoutError(f"a host-staged collective still runs after {timeout_s:g} s")

    def _copy_out(self, lane: Lane, piece: Tensor) -> tuple[Tensor, Any]:
        on_device = piece.device.type == "cuda"
        host = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=on_device)
        with lane.on():
            host.copy_(piece, non_blocking=True)
            return host, lane.mark()

    def _submit(self, leg: Callable[[], None]) -> None:
        with self._changed:
            if self._closing:
                raise RuntimeError("the device path is closed")
            self._legs.append(leg)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="muster-host-staging", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._legs and not self._closing:
                    self._changed.wait(_IDLE_S)
                if not self._legs:
                    self._thread = None
                    return
                leg = self._legs.popleft()
            leg()
            del leg
