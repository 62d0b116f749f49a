"""Sends and receives of a group without a core: matched by (peer, tag), in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from muster_collectives.pure.wire import Message
from muster_collectives.runtime.buffers import memory_at
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.types import Code, Failure, RankStatus, Status

if TYPE_CHECKING:
    from muster_collectives.pure.communicator import PureCommunicator


class Mail:
    """Messages that came before their receive, and receives that wait."""

    def __init__(self, group: PureCommunicator) -> None:
        self._group = group
        self._changed = threading.Condition()
        self._early: deque[tuple[Message, bytearray]] = deque()
        self._waiting: deque[PureRequest] = deque()
        self._followed: list[PureRequest] = []

    def send(self, address: int, bytes_: int, peer: int, tag: int, timeout_s: float) -> PureRequest:
        message = Message(self._group.rank, peer, tag)
        request = PureRequest(self, address, bytes_, peer, tag, timeout_s, is_send=True)
        self._group.journal.sends += 1
        data = memory_at(address, bytes_)
        if peer == self._group.rank:
            self.arrived(message, bytearray(data))
        else:
            self._group.forward(message, data)
        request.end = Status(peer, tag, bytes_)  # the hub has it: the memory is free again
        self._group.journal.sends_bytes += bytes_
        return request

    def receive(
        self, address: int, bytes_: int, peer: int | None, tag: int, timeout_s: float
    ) -> PureRequest:
        request = PureRequest(self, address, bytes_, peer, tag, timeout_s, is_send=False)
        self._group.journal.receives += 1
        with self._changed:
            for index, (message, body) in enumerate(self._early):
                if request.takes(message):
                    del self._early[index]
                    self._fill(request, message, body)
                    return request
            self._waiting.append(request)
        return request

    def arrived(self, message: Message, body: bytearray) -> None:
        """In the reader's thread."""
        with self._changed:
            for index, request in enumerate(self._waiting):
                if request.takes(message):
                    del self._waiting[index]
                    self._fill(request, message, body)
                    self._changed.notify_all()
                    return
            self._early.append((message, body))

    def broken(self) -> None:
        """The group has failed or is closed: who waits looks again."""
        with self._changed:
            self._changed.notify_all()

    def await_(self, request: PureRequest, limit_s: float) -> Status | CollectiveError:
        began = time.monotonic()
        with self._changed:
            while not self.look(request):
                waited_s = time.monotonic() - began
                if not waited_s < limit_s:
                    raise self._group.error(self._late(request, waited_s), request.text)
                left_s = min(limit_s - waited_s, request.deadline - time.monotonic())
                self._changed.wait(max(0.0, left_s) + 0.001)
        assert request.end is not None
        return request.end

    def look(self, request: PureRequest) -> bool:
        """Whether it has ended. One that is late, or whose group has failed, ends here: nothing is
        written to its memory after that."""
        with self._changed:
            if request.end is None:
                failure = self._group.failure()
                if failure is None and request.deadline <= time.monotonic():
                    failure = self._late(request, request.timeout_s)
                if failure is not None:
                    request.end = self._group.error(failure, request.text)
                    if request in self._waiting:
                        self._waiting.remove(request)
            return request.end is not None

    def follow(self, request: PureRequest) -> bool:
        with self._changed:
            if self.look(request):
                return False
            self._followed.append(request)
            self._changed.notify_all()
            return True

    def next(self) -> PureRequest | None:
        with self._changed:
            while not self._group.is_closed:
                ended = next((each for each in self._followed if self.look(each)), None)
                if ended is not None:
                    self._followed.remove(ended)
                    return ended
                due = min((each.deadline for each in self._followed), default=None)
                left_s = None if due is None else max(0.0, due - time.monotonic()) + 0.001
                self._changed.wait(left_s)
        return None

    def _fill(self, request: PureRequest, message: Message, body: bytearray) -> None:
        if len(body) > request.bytes:
            rank_status = [RankStatus.HERE] * self._group.size
            rank_status[message.source] = RankStatus.DIFFERENT
            failure = Failure(Code.EMISMATCH, rank=message.source, rank_status=tuple(rank_status))
            text = f"{request.text}: {len(body)} bytes came"
            request.end = self._group.error(failure, text)
            return
        memory_at(request.address, len(body))[:] = body
        request.end = Status(message.source, message.tag, len(body))
        self._group.journal.receives_bytes += len(body)

    def _late(self, request: PureRequest, waited_s: float) -> Failure:
        rank = -1 if request.peer is None else request.peer
        return Failure(Code.ETIMEOUT, rank=rank, waited_s=waited_s)


class PureRequest:
    def __init__(
        self, mail: Mail, address: int, bytes_: int, peer: int | None, tag: int, timeout_s: float,
        *, is_send: bool,
    ) -> None:  # fmt: skip
        self._mail = mail
        self.address = address
        self.bytes = bytes_
        self.peer = peer
        self._tag = tag
        self.deadline = time.monotonic() + min(timeout_s, 1e9)
        self.timeout_s = timeout_s
        self.end: Status | CollectiveError | None = None
        who = "any rank" if peer is None else f"rank {peer}"
        verb = f"send of {bytes_} bytes to" if is_send else f"receive of {bytes_} bytes from"
        self.text = f"{verb} {who}, tag {tag}"

    def takes(self, message: Message) -> bool:
        return message.tag == self._tag and self.peer in (None, message.source)

    def done(self) -> bool:
        return self._mail.look(self)

    def wait(self, timeout_s: float | None = None) -> Status:
        limit_s = self.timeout_s + 1.0 if timeout_s is None else timeout_s
        end = self._mail.await_(self, limit_s)
        if isinstance(end, CollectiveError):
            raise end
        return end
