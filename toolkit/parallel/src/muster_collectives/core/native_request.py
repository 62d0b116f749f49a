"""A send or a receive of the C core."""

from __future__ import annotations

import ctypes
import enum
import time
from typing import TYPE_CHECKING, NamedTuple

from muster_collectives.core import abi
from muster_collectives.core.errors import CollectiveError
from muster_collectives.core.types import Code, Failure, Status

if TYPE_CHECKING:
    from muster_collectives.core.native import NativeCommunicator

# Python looks for signals between two of these, so a wait can be interrupted by hand
_SLICE_S = 0.2


class Ways(enum.IntEnum):
    SEND = 0
    RECV = 1


class _Look(NamedTuple):
    """What one call of mc_wait writes."""

    status: abi.McStatus
    place: abi.FailurePlace


class NativeRequest:
    """Keeps its end once the core has said it, for the core forgets it then.

    The core says it once, to one of the threads that look; to those that look after that it says
    EINVAL. So every look is in `_looks` for as long as it may hold the end: whoever finds that the
    core has forgotten the request finds the end there, whole, also where the thread that was told
    has not come on yet or was interrupted by a signal handler.
    """

    def __init__(
        self,
        group: NativeCommunicator,
        way: Ways,
        number: int,
        peer: int,
        tag: int,
        bytes_: int,
        timeout_s: float,
    ) -> None:
        self._group = group
        self.number = number
        self._timeout_s = timeout_s
        self._end: Status | CollectiveError | None = None
        self._looks: list[_Look] = []
        who = "any rank" if peer < 0 else f"rank {peer}"
        verb = "send of {} bytes to" if way is Ways.SEND else "receive of {} bytes from"
        self.text = f"{verb.format(bytes_)} {who}, tag {tag}"
        self._peer = peer

    def done(self) -> bool:
        return self._end is not None or self._look(0.0)

    def wait(self, timeout_s: float | None = None) -> Status:
        # the core ends the request at its own deadline; the margin lets it name the rank itself
        limit_s = self._timeout_s + 1.0 if timeout_s is None else timeout_s
        began = time.monotonic()
        while self._end is None:
            left_s = limit_s - (time.monotonic() - began)
            if self._look(max(0.0, min(left_s, _SLICE_S))):
                break
            if left_s <= 0:
                failure = Failure(Code.ETIMEOUT, rank=self._peer, waited_s=limit_s)
                raise self._group.error(failure, self.text)
        if isinstance(self._end, CollectiveError):
            raise self._end
        assert self._end is not None
        return self._end

    def _look(self, wait_s: float) -> bool:
        look = _Look(abi.McStatus(), abi.FailurePlace(self._group.size))
        try:
            handle = self._group.enter()
        except CollectiveError as error:
            self._end = error
            return True
        self._looks.append(look)
        try:
            code = self._group.library.mc_wait(
                handle, self.number, wait_s, ctypes.byref(look.status), look.place.address
            )
        finally:
            self._group.leave()
        if not look.status.done and code == Code.EINVAL:  # one that was told before
            look = next((each for each in tuple(self._looks) if each.status.done), look)
        if look.status.done or (code and self._end is None):
            self._end = self._end_of(look, int(code))
        elif not code:
            self._looks.remove(look)
        return self._end is not None

    def _end_of(self, look: _Look, code: int) -> Status | CollectiveError:
        status = look.status
        if status.done and status.code == Code.OK:
            return Status(int(status.peer), int(status.tag), int(status.bytes))
        failure = look.place.read(int(status.code) or code)
        if failure.rank < 0 and self._peer >= 0:
            failure = _naming(failure, self._peer)
        return self._group.error(failure, self._failed(failure, int(status.bytes)))

    def _failed(self, failure: Failure, came: int) -> str:
        if failure.code is Code.EMISMATCH and came:
            return f"{self.text}: {came} bytes came"
        return self.text


class NativeEnds:
    """`Communicator.ends` of the core."""

    def __init__(self, group: NativeCommunicator) -> None:
        self._group = group
        self._followed: dict[int, NativeRequest] = {}

    def follow(self, request: NativeRequest) -> bool:
        self._followed[request.number] = request
        handle = self._group.enter()
        try:
            code = self._group.library.mc_follow(handle, request.number)
        finally:
            self._group.leave()
        if code:
            del self._followed[request.number]
        if code in (Code.OK, Code.EINVAL):
            return not code
        raise self._group.error(Failure(Code(code)), request.text)

    def next(self) -> NativeRequest | None:
        number = ctypes.c_uint64()
        try:
            handle = self._group.enter()
        except CollectiveError:
            return None
        try:
            code = self._group.library.mc_next_ended(handle, ctypes.byref(number))
        finally:
            self._group.leave()
        return None if code else self._followed.pop(number.value)


def _naming(failure: Failure, peer: int) -> Failure:
    from dataclasses import replace

    return replace(failure, rank=peer)
