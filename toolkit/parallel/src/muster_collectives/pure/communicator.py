"""A group without the compiled core: a connection to the hub in rank 0's process (pure_hub.py).

The same promises as over the core, not its speed. A thread reads what the hub sends, so that
failures and messages come in at any time.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from muster_collectives.bootstrap.channel import StrangerError, dial
from muster_collectives.bootstrap.frames import Frame, FrameError
from muster_collectives.bootstrap.service import Service
from muster_collectives.pure import wire
from muster_collectives.pure.mailbox import Mail, PureRequest
from muster_collectives.pure.region import PureRegion, register
from muster_collectives.pure.server import Hub
from muster_collectives.pure.trace import Journal
from muster_collectives.pure.verbs import counts_head, sent_bytes
from muster_collectives.runtime.buffers import memory_at
from muster_collectives.runtime.communicator import Communicator
from muster_collectives.runtime.errors import CollectiveError
from muster_collectives.runtime.flight import Flight
from muster_collectives.runtime.layout import Layout
from muster_collectives.runtime.messages import error_of
from muster_collectives.runtime.reentrancy import ReentrancyGuard
from muster_collectives.runtime.types import (
    DTYPE_BYTES,
    REDUCING,
    ROOTED,
    Code,
    Description,
    DType,
    Failure,
    Op,
    RankStatus,
    Record,
    Stats,
    Verb,
    is_defined,
)

MAX_BODY_BYTES = 1 << 40
_MARGIN_S = 3.0  # for the hub to name who is missing, after a deadline of this rank
_LINGER_S = 1.0
_DIAL_PAUSE_S = 0.02
_FOREVER_S = 1e9


class PureCommunicator(Communicator):
    """`transport` "pure"."""

    transport = "pure"

    def __init__(
        self,
        layout: Layout,
        listener: socket.socket | None,
        *,
        name: str,
        timeout_s: float,
        create_s: float | None = None,
        why: tuple[str, ...] = (),
        flight: Flight | None = None,
    ) -> None:
        """Owns `listener`. Raises CollectiveError if the hub is not reached in `create_s`."""
        self.rank, self.size, self.name = layout.rank, layout.size, name
        self.nodes, self.timeout_s, self.why = layout.nodes, timeout_s, why
        self.tuning = layout.tuning
        self._pid = os.getpid()
        self._flight = flight
        self.journal = Journal(layout.size)
        self._turn = ReentrancyGuard(self._usage)
        self._changed = threading.Condition()
        self._seq = 0
        self._mine: Description | None = None
        self._result: tuple[int, bytearray] | None = None
        self._broken: Failure | None = None
        self._is_closed = False
        self._hub = Hub(layout.size)
        self._service: Service | None = None
        if self.rank == 0 and listener is not None:
            self._service = Service(listener, layout.size, layout.key, self._hub,
                                    max_body_bytes=MAX_BODY_BYTES,
                                    name=f"collectives-hub-{name}")  # fmt: skip
        elif listener is not None:
            listener.close()
        self._mail = self.ends = Mail(self)
        self._reader: threading.Thread | None = None
        if self.size > 1:
            self._dial(layout, timeout_s if create_s is None else create_s)

    def _dial(self, layout: Layout, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        hub = layout.addresses[0]
        while True:
            try:
                self._channel = dial(hub.host, hub.port, self.rank, layout.key,
                                     max(0.1, deadline - time.monotonic()),
                                     MAX_BODY_BYTES)  # fmt: skip
                break
            except (OSError, StrangerError) as error:
                if time.monotonic() >= deadline or isinstance(error, StrangerError):
                    if self._service is not None:
                        self._service.close()
                    failure = Failure(Code.ENET, rank=0, waited_s=timeout_s)
                    raise error_of(
                        failure, self.name, self.rank, self.size, call=f"dialling {hub} ({error})"
                    ) from error
                time.sleep(_DIAL_PAUSE_S)
        self._reader = threading.Thread(
            target=self._read, name=f"collectives-{self.name}", daemon=True
        )
        self._reader.start()

    # --- collectives

    def run(
        self,
        verb: Verb,
        *,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: Op = Op.SUM,
        root: int = 0,
        in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        counts = self._counts(verb, in_counts, out_counts)
        self._valid(verb, source, target, count, dtype, op, root, counts)
        called = Description(0, count, verb, dtype, op, root)
        self._ready(called)  # a forked child must not wait for a thread that it has not
        with self._turn:
            self._ready(called)
            self._seq += 1
            what = Description(
                self._seq, 0 if counts else count, verb, dtype,
                op if verb in REDUCING else Op.SUM, root if verb in ROOTED else 0,
            )  # fmt: skip
            began = time.monotonic()
            self._mine = what
            moved = sum(counts[0]) if counts else count
            try:
                self._exchange(what, source, target, counts, limit_s)
            except CollectiveError as error:
                self.journal.note(what, began, error.code, moved)
                raise self._logged(error) from None
            except BaseException:  # of a signal handler: the call is not complete, nor will it be
                self.abort()
                raise
            self.journal.note(what, began, Code.OK, moved)

    def _exchange(
        self, what: Description, source: int, target: int,
        counts: tuple[Sequence[int], Sequence[int]] | None, limit_s: float,
    ) -> None:  # fmt: skip
        width = DTYPE_BYTES[what.dtype]
        if counts:
            size, head = sum(counts[0]) * width, counts_head(*counts)
            room = sum(counts[1]) * width
        else:
            size, head = sent_bytes(what, self.rank, self.size), b""
            room = self._room(what) * width
        address = target if what.verb is Verb.BROADCAST else source
        given = memory_at(address, size)
        if self.size == 1:
            if room and address != target:
                memory_at(target, room)[:] = bytes(given)
            return
        call = wire.Call(what, min(limit_s, _FOREVER_S), counts is not None)
        self._send(wire.CALL, wire.call_head(call), head, given)
        body = self._await(what, limit_s)
        if body:
            memory_at(target, len(body))[:] = body

    def _room(self, what: Description) -> int:
        """Elements of the result on this rank."""
        if what.verb is Verb.BARRIER:
            return 0
        if what.verb in (Verb.ALL_GATHER, Verb.ALL_TO_ALL, Verb.GATHER):
            return what.count * self.size
        return what.count

    def _await(self, what: Description, limit_s: float) -> bytearray:
        began = time.monotonic()
        deadline = began + min(limit_s, _FOREVER_S) + _MARGIN_S
        with self._changed:
            while True:
                if self._result is not None and self._result[0] == what.seq:
                    body, self._result = self._result[1], None
                    self.journal.waited(time.monotonic() - began)
                    return body
                if self._broken is not None:
                    raise self.error(self._broken)
                left_s = deadline - time.monotonic()
                if left_s <= 0:  # rank 0's process itself does not answer
                    rank_status = (RankStatus.MISSING, *[RankStatus.HERE] * (self.size - 1))
                    self._break(
                        Failure(Code.ETIMEOUT, rank=0, waited_s=limit_s, rank_status=rank_status)
                    )
                    continue
                self._changed.wait(left_s)

    # --- the reader's thread

    def _read(self) -> None:
        try:
            while True:
                self._take(self._channel.receive(time.monotonic() + _FOREVER_S))
        except (OSError, FrameError, ValueError) as error:
            code = Code.ENET if isinstance(error, FrameError) else Code.EPEER
            rank_status = (RankStatus.DEAD, *[RankStatus.HERE] * (self.size - 1))
            with self._changed:
                self._break(Failure(code, rank=0, rank_status=rank_status))

    def _take(self, frame: Frame) -> None:
        if frame.kind == wire.MESSAGE:
            self._mail.arrived(wire.read_message(frame.head), frame.body)
            return
        with self._changed:
            if frame.kind == wire.RESULT:
                self._result = (wire.read_result(frame.head), frame.body)
                self._changed.notify_all()
            elif frame.kind == wire.FAILED:
                self._break(wire.read_failure(bytes(frame.body), self.size, self._mine))

    def _break(self, failure: Failure) -> None:
        """The first failure counts; `_changed` is held."""
        if self._broken is None:
            self._broken = failure if failure.mine else replace(failure, mine=self._mine)
            self._mail.broken()
        self._changed.notify_all()

    # --- sends and receives

    def post_send(
        self, address: int, bytes_: int, peer: int, tag: int, timeout_s: float | None = None
    ) -> PureRequest:
        self._ready(None)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return self._mail.send(address, bytes_, self._peer(peer), tag, limit_s)

    def post_recv(
        self,
        address: int,
        bytes_: int,
        peer: int | None,
        tag: int,
        timeout_s: float | None = None,
    ) -> PureRequest:
        self._ready(None)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        who = None if peer is None else self._peer(peer)
        return self._mail.receive(address, bytes_, who, tag, limit_s)

    def forward(self, message: wire.Message, data: memoryview) -> None:
        """Gives a message to the hub. Raises CollectiveError."""
        self._send(wire.MESSAGE, wire.message_head(message), data)

    def failure(self) -> Failure | None:
        if os.getpid() != self._pid:
            return Failure(Code.EFORK)
        return Failure(Code.ECLOSED) if self._is_closed else self._broken

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- the rest

    def allocate(self, bytes_: int) -> PureRegion:
        return register(self, bytes_)

    def adopt(self, fd: int, address: int, bytes_: int) -> PureRegion:
        return register(self, bytes_, address)

    def abort(self) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        if self.size > 1:
            try:
                self._channel.send(wire.ABORT, timeout_s=_LINGER_S)
            except OSError:
                self._channel.shutdown()  # the hub sees that at once
        with self._changed:
            self._break(Failure(Code.EABORT))

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._pid:
            return
        self.write_summary()
        self._mail.broken()
        if self.size > 1:
            with suppress(OSError):
                self._channel.send(wire.BYE, timeout_s=_LINGER_S)
            if self._service is not None and self._broken is None:
                self._hub.all_left.wait(_LINGER_S)  # what it has answered shall be heard
            if self._service is not None:
                self._service.close()
            self._channel.shutdown()
            if self._reader is not None and self._reader is not threading.current_thread():
                self._reader.join(_LINGER_S)
            self._channel.close()
        elif self._service is not None:
            self._service.close()
        self._end_store()

    def stats(self) -> Stats:
        return self.journal.stats()

    def waits_s(self) -> tuple[float, ...]:
        return (0.0,) * self.size

    def records(self) -> tuple[Record, ...]:
        return self.journal.records()

    # --- what is wrong

    def error(self, failure: Failure, call: str = "") -> CollectiveError:
        return error_of(failure, self.name, self.rank, self.size, self.records(), call)

    def _logged(self, error: CollectiveError) -> CollectiveError:
        if self._flight is not None and error.code is not Code.EINVAL:
            self._flight.write(error, self.records(), self.waits_s)
        return error

    def _ready(self, called: Description | None) -> None:
        """Raises ClosedError, ForkError, or the group's failure."""
        if os.getpid() != self._pid:
            raise self.error(Failure(Code.EFORK, mine=called))
        if self._is_closed:
            raise self.error(Failure(Code.ECLOSED, mine=called))
        if self._broken is not None:
            raise self.error(self._broken)

    def _send(self, kind: int, head: bytes, *bodies: memoryview | bytes) -> None:
        try:
            self._channel.send(kind, head, *bodies)
        except OSError:
            rank_status = (RankStatus.DEAD, *[RankStatus.HERE] * (self.size - 1))
            with self._changed:
                # the hub's last word may still be on its way; it says more than a broken pipe
                self._changed.wait_for(lambda: self._broken is not None, _LINGER_S)
                self._break(Failure(Code.EPEER, rank=0, mine=self._mine, rank_status=rank_status))
                assert self._broken is not None
                raise self.error(self._broken) from None

    def _peer(self, peer: int) -> int:
        if not 0 <= peer < self.size:
            raise self._usage(f"there is no rank {peer}", f"a peer from 0 to {self.size - 1}")
        return peer

    def _counts(
        self, verb: Verb, in_counts: Sequence[int] | None, out_counts: Sequence[int] | None
    ) -> tuple[Sequence[int], Sequence[int]] | None:
        if in_counts is None and out_counts is None:
            return None
        for counts in (in_counts, out_counts):
            if counts is None or len(counts) != self.size or min(counts) < 0:
                raise self._usage(
                    "in_counts and out_counts do not say what goes to and comes from each rank",
                    f"give {self.size} counts of 0 or more in each",
                )
        if verb is not Verb.ALL_TO_ALL:
            raise self._usage(f"{verb.name.lower()} has no counts", "all_to_all alone has")
        assert in_counts is not None and out_counts is not None
        if self.size == 1 and in_counts[0] != out_counts[0]:  # of several, ranks compare
            raise self._usage(
                f"{in_counts[0]} elements go to this rank itself, {out_counts[0]} are to come",
                "give the same count in both",
            )
        return in_counts, out_counts

    def _valid(
        self, verb: Verb, source: int, target: int, count: int, dtype: DType, op: Op, root: int,
        counts: object,
    ) -> None:  # fmt: skip
        self._root(root)
        if verb in REDUCING and not is_defined(dtype, op):
            self._op(op, dtype)
        if count < 0:
            raise self._usage(f"a count of {count}", "0 or more")
        if counts or not count or verb is Verb.BARRIER:
            return
        is_root = root == self.rank
        gives = verb is not Verb.BROADCAST and (verb is not Verb.SCATTER or is_root)
        takes = verb not in (Verb.REDUCE, Verb.GATHER) or is_root
        if (gives and not source) or (takes and not target):
            raise self._usage("an address is missing", "give both where the rank sends and takes")
