"""Jobs of several collectives each, in the order in which they came, beside the backward pass.

Two collectives that depend on each other cannot both be issued when a bucket is ready, and from
the callback of the first the second would be issued in an order that differs between ranks. So one
thread runs the jobs of a processor one by one; on a device a stream does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

_IDLE_S = 5.0  # then the thread ends; the next job starts another

Job = Callable[[], Tensor]


class Order:
    """Gives each job's result as a future; an exception of a job goes to its future."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Job, Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._streams: dict[torch.device, Any] = {}

    def submit(self, job: Job, tensor: Tensor) -> Future[Any]:
        """Runs `job`, which works on `tensor`, after all that were submitted before."""
        if tensor.device.type == "cuda":
            return self._on_stream(job, tensor)
        future: Future[Any] = Future()
        with self._changed:
            if self._closing:
                raise RuntimeError("the state of this communication hook was closed")
            self._jobs.append((job, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="muster-hook", daemon=True)
                self._thread.start()
            self._changed.notify()
        return future

    def close(self, timeout_s: float = 60.0) -> None:
        """Ends the thread once its jobs are done; raises TimeoutError if they take longer."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                raise TimeoutError(f"a communication hook is still busy after {timeout_s:g} s")

    def _work(self) -> None:
        with torch.no_grad():
            while (item := self._next()) is not None:
                job, future = item
                try:
                    future.set_result(job())
                except Exception as error:
                    future.set_exception(error)
                del item, job, future

    def _next(self) -> tuple[Job, Future[Any]] | None:
        with self._changed:
            if not self._jobs and not self._closing:
                self._changed.wait(_IDLE_S)
            if self._jobs:
                return self._jobs.popleft()
            self._thread = None
            return None

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
