"""A future that a thread of ours settles."""

from __future__ import annotations

from typing import Any

import torch
from torch.futures import Future

__all__ = ["SettableFuture"]


class SettableFuture:
    """A future that Python settles. `future` gets what `set_result` is given, or raises what
    `set_error` is given; one of the two, once.

    C++ sees a failure too: only a callback that raises gives a future an error that DDP's reducer
    can read. It takes tensors out of anything else, an exception that was set included."""

    def __init__(self, device: torch.device | None = None) -> None:
        on_device = device is not None and device.type == "cuda"
        self._source: Future[Any] = Future(devices=[device] if on_device else None)
        self._error: BaseException | None = None
        self.future: Future[Any] = self._source.then(self._value_or_error)

    def set_result(self, value: Any) -> None:
        """Of CUDA tensors: records what its waiters' streams wait for, on the current stream."""
        self._source.set_result(value)

    def set_error(self, error: BaseException) -> None:
        self._error = error
        self._source.set_result(None)

    def _value_or_error(self, source: Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return source.value()
