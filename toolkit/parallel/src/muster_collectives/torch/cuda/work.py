"""What the device path returns: works whose `wait` orders streams, and does not stop the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from muster_collectives.torch.cuda.side_streams import SideStream
from muster_collectives.torch.works.settable import SettableFuture


class SideStreamWork(dist._Work):  # type: ignore[misc]  # a class of C++
    """A call that has been issued to lanes. `wait`: the caller's stream goes on after it."""

    def __init__(self, side_stream: SideStream, outputs: list[Tensor]) -> None:
        super().__init__()
        self._device, self._outputs = side_stream.device, outputs
        self._event = side_stream.mark()
        on_device = side_stream.device.type == "cuda"
        self._future: Future[Any] = Future(devices=[side_stream.device] if on_device else None)
        with side_stream.on():
            self._future.set_result(outputs)  # records what its waiters' streams wait for

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout  # nothing is waited for here
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event is None or bool(self._event.query())

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._outputs

    def get_future(self) -> Future[Any]:
        return self._future


class HostWork(dist._Work):  # type: ignore[misc]  # a class of C++
    """A call with a leg on the host. `wait` stands until that leg is over, then orders streams."""

    def __init__(self, device: torch.device, outputs: list[Tensor], timeout_s: float) -> None:
        super().__init__()
        self._device, self._outputs, self._timeout_s = device, outputs, timeout_s
        self._settable = SettableFuture(device)
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._event: Any = None

    def run(self, leg: Callable[[], SideStream]) -> None:
        """Called by the thread that has the host's leg, once."""
        try:
            side_stream = leg()
            self._event = side_stream.mark()
            with side_stream.on():
                self._settable.set_result(self._outputs)
        except Exception as error:
            self._error = error
            self._settable.set_error(error)
        finally:
            self._ended.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit_s = timeout.total_seconds() if timeout is not None else 0.0
        limit_s = limit_s if limit_s > 0 else self._timeout_s
        if not self._ended.wait(limit_s):
            raise TimeoutError(
                f"a host-staged collective of {self._device} is not done after {limit_s:g} s; "
                "the error of the group that sums on the host names the ranks that have not come"
            )
        if self._error is not None:
            raise self._error
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        if not self._ended.is_set():
            return False
        return self._event is None or bool(self._event.query())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._outputs

    def get_future(self) -> Future[Any]:
        return self._settable.future
