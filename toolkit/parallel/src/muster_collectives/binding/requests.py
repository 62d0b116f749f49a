"""A send or a receive of the C core."""

from __future__ import annotations

import ctypes
import enum
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from muster_collectives.binding import abi
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.types import Code, Failure, Status

if TYPE_CHECKING:
    from muster_collectives.binding.core_group import CoreGroup

# Python looks for signals between two of these, so a wait can be interrupted by hand
_SLICE_S = 0.2
_STATUS = abi.McTransfer.status.offset


class Ways(enum.IntEnum):
    """The directions of a transfer, as the core numbers them."""

    SEND = 0
    RECV = 1


class Request:
    """A send or a receive under way. Keeps its end once the core has said it, for the core forgets
    it then.

    The core says it once, to one of the threads that look; to those that look after that it says
    EINVAL. What it says, it writes into this request before it forgets: whoever finds that it has
    forgotten finds the end here, whole, also where the thread that was told has not come on yet or
    was interrupted by a signal handler."""

    def __init__(
        self, group: CoreGroup, way: Ways, peer: int, tag: int, bytes_: int, timeout_s: float
    ) -> None:
        self._group = group
        self._told = told = abi.McTransfer()
        self.place = place = ctypes.addressof(told)  # where the core writes this request's number
        self._status_at = place + _STATUS
        self._timeout_s = timeout_s
        self._end: Status | CollectiveError | None = None
        self._call = way, peer, tag, bytes_

    @property
    def number(self) -> int:
        return int(self._told.number)

    @property
    def text(self) -> str:
        way, peer, tag, bytes_ = self._call
        who = "any rank" if peer < 0 else f"rank {peer}"
        verb = "send of {} bytes to" if way is Ways.SEND else "receive of {} bytes from"
        return f"{verb.format(bytes_)} {who}, tag {tag}"

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._end is not None or self._look(0.0)

    def wait(self, timeout_s: float | None = None) -> Status:
        """Until it is done. `timeout_s` (none: that of the post) bounds this wait alone: after it
        CollectiveTimeout, and the request goes on. Raises what the transfer ended with."""
        # the core ends the request at its own deadline; the margin lets it name the rank itself
        limit_s = self._timeout_s + 1.0 if timeout_s is None else timeout_s
        # of a negative limit, and of one that is no number, 0 is left
        if self._end is None and not self._look(max(0.0, min(limit_s, _SLICE_S))):
            self._wait_on(limit_s, time.monotonic() - _SLICE_S)
        if isinstance(self._end, CollectiveError):
            raise self._end
        assert self._end is not None
        return self._end

    def _wait_on(self, limit_s: float, began: float) -> None:
        """Slice after slice. Raises CollectiveTimeout."""
        while True:
            left_s = limit_s - (time.monotonic() - began)
            if self._look(max(0.0, min(left_s, _SLICE_S))):
                return
            if not left_s > 0:
                failure = Failure(Code.ETIMEOUT, rank=self._call[1], waited_s=limit_s)
                raise self._group.error(failure, self.text)

    def _look(self, wait_s: float) -> bool:
        told = self._told
        code = self._group.wait_core(told.number, wait_s, self._status_at, 0)
        if code == abi.UNDER_WAY:
            return False
        status = told.status
        if status.done:  # now, or to an earlier look
            code = status.code
        elif code == Code.EINVAL:  # it was this look that was wrong
            raise self._group.error(Failure(Code.EINVAL), self.text)
        if code:
            self._end = self._failed(code)
        else:
            self.end()
        return True

    def end(self) -> None:
        """The core has said that it is over, and well."""
        status = self._told.status
        self._end = Status(status.peer, status.tag, status.bytes)

    def _failed(self, code: int) -> CollectiveError:
        """The core keeps a failure until it is asked for all of it: into one place for all."""
        refused = self._group.refused(code)
        if refused is not None:
            return refused
        fresh = abi.FailurePlace(self._group.size)
        place: abi.FailurePlace = self.__dict__.setdefault("_failure", fresh)
        self._group.wait_core(self.number, 0.0, self._status_at, place.address.value or 0)
        failure, text, (_, peer, _, _) = place.read(code), self.text, self._call
        if failure.rank < 0 and peer >= 0:
            failure = replace(failure, rank=peer)
        came = self._told.status.bytes
        if failure.code is Code.EMISMATCH and came:
            text = f"{text}: {came} bytes came"
        return self._group.error(failure, text)


class Ends:
    """Tells threads which of many requests of a group have ended, in the order of their ends."""

    def __init__(self, group: CoreGroup) -> None:
        self._group = group
        self._followed: dict[int, Request] = {}

    def follow(self, request: Request) -> bool:
        """`next` shall tell its end. False: its end is known already, and `next` will not tell
        it. Raises CollectiveError: the group is closed, in a child of the process, no memory."""
        self._followed[request.number] = request
        is_followed = False
        try:
            with self._group.inside() as handle:
                code = self._group.library.mc_follow(handle, request.number)
            if code not in (Code.OK, Code.EINVAL):
                raise self._group.error(Failure(Code(code)), request.text)
            # EINVAL: its end has been told, or an earlier call that was interrupted has done this
            is_followed = code == Code.OK or not request.done()
        finally:
            if not is_followed:
                self._followed.pop(request.number, None)
        return is_followed

    def next(self) -> Request | None:
        """Waits for the next end of one that is followed, which it tells one thread; None once the
        group is closed."""
        number = ctypes.c_uint64()
        request = None
        while request is None:
            try:
                with self._group.inside() as handle:
                    code = self._group.library.mc_next_ended(handle, ctypes.byref(number))
            except CollectiveError:
                return None
            if code:
                return None
            request = self._followed.get(number.value)
        request.done()  # keeps its end, also where the group is closed from now on
        self._followed.pop(number.value, None)
        return request

    def close(self) -> None:
        """Before the core is closed: what has ended well by then has ended well."""
        for request in list(self._followed.values()):
            request.done()
