"""All-reduce of device tensors through host memory, for slow networks and GPUs without peer access.

Pieces go to pinned memory, are summed there by the host's group, and go back; the copies
of one piece overlap the sum of another. One thread has the sums, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from muster_collectives.runtime.executor import SerialExecutor
from muster_collectives.torch.compress import group_calls
from muster_collectives.torch.cuda.side_streams import SideStream, SideStreams
from muster_collectives.torch.cuda.stream_work import HostWork
from muster_collectives.torch.ops import views

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
        host = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=on_device)
        with side_stream.on():
            host.copy_(piece, non_blocking=True)
            return host, side_stream.mark()
