"""Calls that the core's own thread runs (csrc/api/async.c) without this interpreter."""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster_collectives.binding import abi
from muster_collectives.runtime.errors import ClosedError, ForkError
from muster_collectives.runtime.types import Code, CoreCall, Failure

if TYPE_CHECKING:
    from muster_collectives.binding.core_group import CoreGroup

# between two of these Python looks for signals, on the one thread that has handlers
_SLICE_S, _LONG_S = 0.05, 5.0


class Async:
    """Calls that are to be posted to the core's thread, or have been. They begin in order once they
    are posted and after all that were posted before, or when they are waited for, whatever threads
    of Python do meanwhile. One thread at a time uses it. Lives from its post until `done`: the core
    reads it. Raises UsageError for counts that are wrong.

    `is_posted`: true from the moment on from which their memory is the core's."""

    # by the core, which says when it is due; no code of Python, so no signal handler runs meanwhile
    is_posted = property(operator.attrgetter("_raw_async.due_ns"))

    def __init__(self, group: CoreGroup, calls: Sequence[CoreCall], timeout_s: float) -> None:
        self._group = group
        self._calls = calls
        self._tables: list[object] = []
        self._raw_calls = (abi.McCall * len(calls))(*[self._raw(call, timeout_s) for call in calls])
        self._raw_async = abi.McAsync(calls=ctypes.addressof(self._raw_calls), count=len(calls))
        self._address = abi.at(self._raw_async)

    def post(self, grace_s: float) -> None:
        """They begin `grace_s` later at the earliest. Raises CollectiveError: the group is closed,
        in a child of the process or has no thread."""
        post = _post(self._group.library)
        with self._group.inside() as handle:
            code = post(handle, self._address, grace_s)
        if code:
            raise self._group.error(Failure(Code(code)), "an asynchronous call")

    def done(self) -> bool:
        """Whether they have ended: their memory is the caller's again."""
        return bool(self._raw_async.done)

    def wait(self) -> None:
        """Until `done`. Raises only what a signal handler raises, and the calls go on then."""
        slice_s = _LONG_S
        if threading.current_thread() is threading.main_thread():
            slice_s = _SLICE_S
        while not self._raw_async.done:
            try:
                with self._group.alone() as handle:
                    self._group.library.mc_async_wait(handle, self._address, slice_s, None)
            except (ClosedError, ForkError):  # said again by `end`
                return

    def end(self) -> None:
        """Once `done`: raises what the first that failed ended with."""
        code, called = int(self._raw_async.code), None
        if code:
            called = self._calls[self._raw_async.ended].description
        self._group.end_async(self._address, code, called)

    def _raw(self, call: CoreCall, timeout_s: float) -> abi.McCall:
        tables = self._group.tables(call.in_counts, call.out_counts, call.blocks)
        self._tables.append(tables)
        return abi.McCall(
            call.verb, call.dtype, call.op, call.root, call.source, call.target, call.count,
            *tables.at, timeout_s,
        )  # fmt: skip


@functools.lru_cache(maxsize=8)
def _post(library: ctypes.CDLL) -> Callable[..., int]:
    """mc_async_post, which is too short for another thread to get Python's lock meanwhile."""
    return ctypes.PYFUNCTYPE(ctypes.c_int, abi.ptr, abi.ptr, abi.f64)(("mc_async_post", library))
