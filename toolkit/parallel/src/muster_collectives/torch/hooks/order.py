"""Jobs of several collectives each, in the order in which they came, beside the backward pass.

Two collectives that depend on each other cannot both be issued when a bucket is ready, and from
the callback of the first the second would be issued in an order that differs between ranks. So one
thread runs the jobs of a processor one by one; on a device a stream does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from muster_collectives.runtime.executor import SerialExecutor
from muster_collectives.torch.works.settable import SettableFuture

_IDLE_S = 5.0  # then the thread ends; the next job starts another

Job = Callable[[], Tensor]


class Order:
    """Runs jobs in their order in one thread. Gives each job's result as a future; an exception of
    a job goes to its future."""

    def __init__(self) -> None:
        self._jobs = SerialExecutor(
            "muster-hook", _IDLE_S, closed="the state of this communication hook was closed",
            busy="a communication hook is still busy",
        )  # fmt: skip
        self._streams: dict[torch.device, Any] = {}

    def submit(self, job: Job, tensor: Tensor) -> Future[Any]:
        """Runs `job`, which works on `tensor`, after all that were submitted before."""
        if tensor.device.type == "cuda":
            return self._on_stream(job, tensor)
        settable = SettableFuture()

        def run() -> None:
            with torch.no_grad():
                try:
                    settable.set_result(job())
                except Exception as error:
                    settable.set_error(error)

        self._jobs.submit(run)
        return settable.future

    def close(self) -> None:
        """Ends the thread once its jobs are done; raises TimeoutError if they take too long."""
        self._jobs.close()

    def _on_stream(self, job: Job, tensor: Tensor) -> Future[Any]:
        device = tensor.device
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        tensor.record_stream(stream)  # its memory is not given away while the stream works on it
        future: Future[Any] = Future(devices=[device])
        with torch.cuda.stream(stream), torch.no_grad():
            future.set_result(job())  # records an event here: who waits, waits for that
        return future
