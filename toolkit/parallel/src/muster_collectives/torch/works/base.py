"""What all works of ours have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.torch.ops.untraced import leave_alone

__all__ = ["MusterWork", "limit_s"]


class MusterWork(dist._Work):  # type: ignore[misc]  # a class of C++
    """A `dist.Work` of ours: what its future carries is `outputs`, what it failed with `error`."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        super().__init__()
        self._outputs = outputs
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True. Raises what the work ended with; a `timeout` bounds this wait alone."""
        raise NotImplementedError

    def is_completed(self) -> bool:
        raise NotImplementedError

    def get_future(self) -> Any:
        raise NotImplementedError

    def synchronize(self) -> None:
        self.wait()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        return list(self._outputs)


def limit_s(timeout: timedelta | None) -> float | None:
    """Seconds of a `wait(timeout)`; None where c10d means "as long as the group's timeout"."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else None


leave_alone(MusterWork)
