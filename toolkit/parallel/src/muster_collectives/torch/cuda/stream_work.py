"""What the device path returns: works whose `wait` orders streams, and does not stop the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from muster_collectives.torch.cuda.side_streams import SideStream
from muster_collectives.torch.works.base import MusterWork, limit_s
from muster_collectives.torch.works.settable import SettableFuture


class SideStreamWork(MusterWork):
    """A call that has been issued to side streams. `wait`: the caller's stream goes on after it."""

    def __init__(self, side_stream: SideStream, outputs: list[Tensor]) -> None:
        super().__init__(outputs)
        self._device = side_stream.device
        on_device = self._device.type == "cuda"
        self._future: Future[Any] = Future(devices=[self._device] if on_device else None)
        self._event: Any = None
        self._is_issued(side_stream, self._future)

    def _is_issued(self, side_stream: SideStream, future: Future[Any] | SettableFuture) -> None:
        """All of it is on that stream. The future records what its waiters' streams wait for."""
        self._event = side_stream.mark()
        with side_stream.on():
            future.set_result(self._outputs)

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
            self._is_issued(leg(), self._settable)
        except Exception as error:
            self._error = error
            self._settable.set_error(error)
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
