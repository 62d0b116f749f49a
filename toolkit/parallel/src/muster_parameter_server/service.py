"""The dialogue with one worker, in a thread of its own (the protocol's server side)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from muster_collectives.wire import ANSWER_BYTES, NONCE_BYTES, FrameError
from muster_parameter_server.errors import (
    DeadlineError,
    ParameterServerError,
    ProtocolError,
    to_message,
)
from muster_parameter_server.memory import NAMES, view
from muster_parameter_server.options import SYNC, hyper_of, number_of, registration_of
from muster_parameter_server.room import Room
from muster_parameter_server.settings import ServerSettings
from muster_parameter_server.shard import Kept
from muster_parameter_server.wire.channel import Channel, GoneError
from muster_parameter_server.wire.frames import DTYPES, PROTOCOL, Dtype, Header, Kind, Run

HANDSHAKE_S = 5.0
IDLE_S = 86_400.0  # of a worker between two requests; the others' own waits end long before
_LOOK_S = 1.0  # so often a thread looks whether its worker is the last one and silent
_TELL_S = 2.0


class StrangerError(Exception):
    """A peer that could not prove the key, or speaks something else."""


def admit(channel: Channel, settings: ServerSettings, claim: Callable[[], bool]) -> int:
    """The handshake, and whose rank it was; reads 77 bytes at most, within HANDSHAKE_S in all.
    Raises StrangerError.

    `claim`: called for a peer that has proved the key, before it hears so; whether it may stay.
    """
    end = time.monotonic() + HANDSHAKE_S
    try:
        nonce = os.urandom(NONCE_BYTES)
        channel.send_raw(PROTOCOL.hello(nonce), HANDSHAKE_S)
        data = bytearray(ANSWER_BYTES)
        channel.fill(memoryview(data), HANDSHAKE_S, end)
        told = PROTOCOL.read_answer(settings.key, nonce, bytes(data))
        if told.number != settings.number:
            raise StrangerError(f"it looks for server {told.number}")
        if not claim():
            raise StrangerError("too many others came before it was done")
        channel.send_raw(PROTOCOL.welcome(settings.key, nonce, told), HANDSHAKE_S)
    except (GoneError, FrameError) as error:
        raise StrangerError(str(error)) from error
    return told.rank


def serve(rank: int, channel: Channel, room: Room) -> None:
    """Until goodbye or failure; a failure of this worker is the failure of the job."""
    try:
        room.enter(rank, channel)
    except ParameterServerError as error:  # another process has that rank: only this one goes
        _tell(channel, error)
        return
    try:
        _Service(rank, channel, room).run()
    except GoneError as error:
        room.fail(room.lost(rank, str(error)))
    except ProtocolError as error:
        room.fail(ProtocolError(f"rank {rank} at {room.me}: {error.message}", error.fix))
    except ParameterServerError as error:
        room.fail(error)
    except Exception as error:  # a defect, or torch's own: nobody may wait for this thread
        what = f"{type(error).__name__}: {error}"
        room.fail(ParameterServerError(f"{room.me} failed for rank {rank}: {what}"))
    if room.failure is not None:
        _tell(channel, room.failure)


def _tell(channel: Channel, error: ParameterServerError) -> None:
    with suppress(GoneError):
        channel.send(Kind.ERROR, to_message(error), _TELL_S)


class _Service:
    """The requests of one worker, one after the other."""

    def __init__(self, rank: int, channel: Channel, room: Room) -> None:
        self._rank, self._channel = rank, channel
        self._room = room
        self._stall_s = 60.0

    def run(self) -> None:
        header, message = self._next()
        if header.kind is not Kind.REGISTER:
            raise ProtocolError(f"{header.kind.name} came before REGISTER")
        told = registration_of(message)
        self._stall_s = told.timeout_s
        self._room.register(self._rank, told)
        self._channel.send(Kind.READY, {}, self._stall_s)
        while True:
            header, message = self._next()
            if header.kind is Kind.GOODBYE:
                self._room.leave(self._rank)
                return
            if header.kind is Kind.PUSH:
                self._push(message)
            elif header.kind is Kind.LOAD:
                self._load()
            elif header.kind is Kind.PULL:
                self._pull(message)
            else:
                raise ProtocolError(f"{header.kind.name} came where a request was due")

    def _next(self) -> tuple[Header, dict[str, object]]:
        """The worker's next request. Raises DeadlineError for one that is silent for too long."""
        since = time.monotonic()
        while not self._channel.has_come(_LOOK_S):
            left = self._room.others_left
            limit_s = IDLE_S if left is None else self._stall_s
            if time.monotonic() - max(since, left or since) > limit_s:
                last = "" if left is None else " after all others had said goodbye"
                raise DeadlineError(
                    f"rank {self._rank} was silent for {limit_s:g} s{last}, says {self._room.me}",
                    "find out what it does; call close() when training is done, before long work",
                )
        return self._channel.read(self._stall_s)

    def _push(self, message: dict[str, object]) -> None:
        step, hyper = number_of(message, "step"), hyper_of(message, self._room.registration)
        self._receive(self._room.shard.inbox(self._rank))
        done = self._room.push(self._rank, step, hyper)
        self._send(done, self._outbox())

    def _load(self) -> None:
        """No tensor is asked for before all workers have come: they may still read older values."""
        self._room.meet(self._rank, "load")
        self._channel.send(Kind.READY, {}, self._stall_s)
        header, message = self._next()
        if header.kind is not Kind.VALUES:
            raise ProtocolError(f"{header.kind.name} came in a load where VALUES was due")
        kept = None
        if self._rank == 0:
            more = bool(message.get("slots")), bool(message.get("master"))
            kept = Kept(number_of(message, "done"), *more)
            shard = self._room.shard
            self._receive(shard.wires() + shard.state(*more))
        self._room.meet(self._rank, "end of the load", kept)
        self._send(self._room.pull(self._rank), self._outbox())

    def _pull(self, message: dict[str, object]) -> None:
        if message.get("what") == "state":
            self._send(*self._room.state())
        else:
            self._send(self._room.pull(self._rank), self._outbox())

    def _outbox(self) -> list[Tensor]:
        """In sync mode nothing changes before this worker pushes again: no copy is needed."""
        shard = self._room.shard
        return shard.wires() if self._room.registration.mode == SYNC else shard.inbox(self._rank)

    def _receive(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            self._channel.read_tensor(_dtype(tensor), view(tensor), self._stall_s)

    def _send(self, done: int, tensors: list[Tensor]) -> None:
        """`done`: how many updates made the tensors."""
        runs = [Run(_dtype(tensor), tensor.numel(), [view(tensor)]) for tensor in tensors]
        self._channel.send(Kind.VALUES, {"done": done}, self._stall_s, runs)


def _dtype(tensor: Tensor) -> Dtype:
    return DTYPES[NAMES[tensor.dtype]]
