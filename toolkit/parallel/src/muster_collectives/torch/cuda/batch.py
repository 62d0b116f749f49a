"""Sends and receives of torch's `batch_isend_irecv`, begun together.

torch coalesces such a batch for groups of its own class only (it asks `type(group) is
ProcessGroup`) and gives the operations to any other group one by one. NCCL then runs a send before
the receive on both sides of a pair, on one stream, and neither ends beyond its buffers. So the
group looks who calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from muster_collectives.torch.ops import views
from muster_collectives.torch.ops.untraced import leave_alone
from muster_collectives.torch.works.base import MusterWork

Work = Any
_DEPTH = 12  # frames between torch's function and a transfer: a few, and its wrappers
_TORCH = dist.batch_isend_irecv.__code__


def calling_batch() -> FrameType | None:
    """The frame of `batch_isend_irecv` that this call comes from."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None or frame.f_code is _TORCH:
            return frame
        frame = frame.f_back
    return None


class Batch:
    """One batch on an NCCL group. It begins when its last transfer has come, or when somebody
    waits for one of them. `copied_back` is DevicePath's, for receives into such views."""

    def __init__(
        self, group: Any, frame: FrameType, copied_back: Callable[[Work, views.Pairs, Any], Work]
    ) -> None:
        self.frame: FrameType | None = frame
        self._group, self._copied_back = group, copied_back
        listed = frame.f_locals.get("p2p_op_list", ())
        self._left = sum(op.tensor.is_cuda for op in listed)
        self._written: views.Pairs = []
        self._tensors: list[Tensor] = []
        self._work: Work = None
        group._start_coalescing()

    def add(
        self, begin: Callable[[], Work], written: views.Pairs, tensor: Tensor, plain: Tensor
    ) -> Work:
        """One transfer, which `begin` hands to the group as `plain`. Raises what it raises."""
        try:
            begin()
        except BaseException:
            self.close()
            raise
        self._written += written
        self._tensors += [tensor, plain]
        self._left -= 1
        if self._left == 0:
            self.close()
        return BatchWork(self, tensor)

    def close(self) -> Work:
        """Begins what was added, once; a work of all of it."""
        if self.frame is not None:
            self.frame = None
            work = self._group._end_coalescing()
            self._work = self._copied_back(work, self._written, self._tensors)
        return self._work


class BatchWork(MusterWork):
    """One transfer of a batch: over when all of it is."""

    def __init__(self, batch: Batch, tensor: Tensor) -> None:
        super().__init__([tensor])
        self._batch = batch

    def wait(self, timeout: timedelta | None = None) -> bool:
        work = self._batch.close()
        return bool(work.wait() if timeout is None else work.wait(timeout))

    def is_completed(self) -> bool:
        return bool(self._batch.close().is_completed())

    def is_success(self) -> bool:
        return bool(self._batch.close().is_success())

    def exception(self) -> Any:
        return self._batch.close().exception()

    def get_future(self) -> Any:
        future = self._batch.close().get_future()
        return future.then(lambda done: (done.value(), self.result())[1])


leave_alone(BatchWork)
