"""What all works of ours have in common, and how torch.compile leaves them alone.

DDP's reducer is C++ and calls a group that is Python. Where it does so in a function that is being
compiled (it broadcasts its new buckets at the begin of the second step), torch would trace those
methods, which use a group as no graph can, and fail. What C++ groups do is never traced either.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from muster_collectives.runtime.errors import CollectiveTimeout
from muster_collectives.runtime.types import Code


def leave_alone(*classes: type) -> None:
    """Methods of these classes, and all that they call, run as they are when C++ calls them from
    compiled code. `torch.compiler.disable` says the same, and imports the compiler for seconds."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:  # an older torch, or a Python that it does not compile for
        return
    names = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    tell, strategy, action = (getattr(eval_frame, name, None) for name in names)
    if tell is None or strategy is None or action is None:
        return
    for each in classes:
        for code in _codes_of(each):
            tell(code, strategy(action.SKIP, action.SKIP))


def _codes_of(owner: type) -> set[CodeType]:
    found: set[CodeType] = set()
    for value in vars(owner).values():
        method: Any = value.fget if isinstance(value, property) else value
        if inspect.isfunction(method):
            found |= {method.__code__, inspect.unwrap(method).__code__}
    return found


class SettableFuture:
    """A future that Python settles, once. `future` gets the value that `settle` is given, or raises
    the error.

    C++ sees a failure too: only a callback that raises gives a future an error that DDP's reducer
    can read. It takes tensors out of anything else, an exception that was set included."""

    def __init__(self, device: torch.device | None = None) -> None:
        on_device = device is not None and device.type == "cuda"
        self._source: Future[Any] = Future(devices=[device] if on_device else None)
        self._error: BaseException | None = None
        self.future: Future[Any] = self._source.then(self._value_or_error)

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Of CUDA tensors: records what its waiters' streams wait for, on the current stream."""
        self._error = error
        self._source.set_result(value)

    def _value_or_error(self, source: Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return source.value()


class MusterWork(dist._Work):  # type: ignore[misc]  # a class of C++
    """A `dist.Work` of ours: what its future carries is `outputs`, what it failed with `error`."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        super().__init__()
        self._outputs = outputs
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True. Raises what the work ended with; a `timeout` bounds this wait alone."""
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


def late(what: str, seconds: float | None) -> CollectiveTimeout:
    """The error of a wait that has ended before its operation."""
    return CollectiveTimeout(
        f"{what} is not done, after {seconds} s",
        "wait longer, or look at the other ranks: the operation goes on",
        code=Code.ETIMEOUT,
    )


leave_alone(MusterWork)
