"""The worker's side of all its connections: one request to every server at once, one thread.

While gradients still go out to one server, parameters of another come in. A server that failed has
sent its reason before it closed; that reason is raised, also where sending to it failed first.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from muster_collectives.wire import HEADER_BYTES
from muster_parameter_server.errors import (
    DeadlineError,
    ProtocolError,
    ServerLostError,
    from_message,
)
from muster_parameter_server.settings import Address
from muster_parameter_server.wire import frames
from muster_parameter_server.wire.channel import IOV_LIMIT, rest
from muster_parameter_server.wire.frames import Kind, Run

MARGIN_S = 5.0  # the servers' own deadlines pass first: they know who is missing

_Reader = Generator[list[memoryview], None, dict[str, object]]


class _LostError(Exception):
    """The connection is gone; why."""


class Request(NamedTuple):
    """What one server is asked, and where its answer's tensors go."""

    kind: Kind
    message: Mapping[str, object]
    outgoing: Sequence[Run] = ()
    reply: Kind = Kind.VALUES
    incoming: Sequence[Run] = ()


class Link:
    """A connection that has passed the handshake."""

    def __init__(self, number: int, address: Address, sock: socket.socket) -> None:
        self.sock = sock
        self.name = f"server {number} at {address}"
        self.outgoing: list[memoryview] = []
        self.broken = ""  # why nothing more can be sent
        self.told = False  # the error that ends this link was made by the server
        self.answer: dict[str, object] | None = None
        self._sent, self._received = count(1), count(1)  # numbers of the next frames
        self._wanted: list[memoryview] = []
        self._reader: _Reader | None = None

    def begin(self, request: Request) -> None:
        """Lines up the bytes of a request and the places of its answer."""
        self.outgoing += frames.parts_of(
            self._sent, request.kind, request.message, request.outgoing
        )
        self.answer = None
        self._reader = self._read(request)
        self._wanted = next(self._reader)

    @property
    def busy(self) -> bool:
        return bool(self.outgoing) or self.answer is None

    def send_some(self) -> int:
        """Bytes that went out; never waits."""
        try:
            sent = self.sock.sendmsg(self.outgoing[:IOV_LIMIT])
        except BlockingIOError:
            return 0
        except OSError as error:  # what the server said before is still to be read
            self.broken, self.outgoing = error.strerror or str(error), []
            return 0
        self.outgoing = rest(self.outgoing, sent)
        return sent

    def receive_some(self) -> int:
        """Bytes that came in; never waits. Raises what the server says, _LostError."""
        try:
            got = self.sock.recvmsg_into(self._wanted[:IOV_LIMIT])[0]
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _LostError(error.strerror or str(error)) from error
        if not got:
            raise _LostError(self.broken or "it closed the connection")
        self._wanted = rest(self._wanted, got)
        while not self._wanted and self.answer is None:
            self._advance()
        return got

    def _advance(self) -> None:
        if self._reader is None:
            raise ProtocolError("bytes came that nobody asked for")
        try:
            self._wanted = [part for part in next(self._reader) if len(part)]
        except StopIteration as done:
            self.answer = done.value

    def _read(self, request: Request) -> _Reader:
        """Yields the places to fill next; returns the answer's text."""
        head = bytearray(HEADER_BYTES)
        while True:
            yield [memoryview(head)]
            header = frames.decode(head, next(self._received))
            message: dict[str, object] = {}
            if header.kind is not Kind.TENSOR:
                text = bytearray(header.size_bytes)
                yield [memoryview(text)]
                message = frames.read_text(text)
            if header.kind is not Kind.WAIT:
                break
        if header.kind is Kind.ERROR:
            self.told = True
            raise from_message(message)
        if header.kind is not request.reply:
            raise ProtocolError(f"{header.kind.name} came where {request.reply.name} was due")
        for run in request.incoming:
            yield [memoryview(head)]
            header = frames.decode(head, next(self._received))
            frames.require_tensor(header, run.dtype, run.elements)
            yield run.parts
        return message


class Exchange:
    """All links of a worker. After an error every link is closed and nothing works any more."""

    def __init__(self, links: Sequence[Link], rank: int, timeout_s: float) -> None:
        self.links = links
        self._rank = rank
        self._limit_s = timeout_s + MARGIN_S
        self.open = True

    def ask(self, what: str, requests: Sequence[Request]) -> list[dict[str, object]]:
        """One answer of each server. `what`: the act and its step, for errors.

        Raises ParameterServerError.
        """
        if not self.open:
            raise ServerLostError(
                f"rank {self._rank} has left its servers, so it cannot do its {what}",
                "connect once and use the connection until close() or the first error",
            )
        try:
            for link, request in zip(self.links, requests, strict=True):
                link.begin(request)
            self._move(what)
        except BaseException:
            self.abort()
            raise
        return [link.answer or {} for link in self.links]

    def goodbye(self) -> None:
        """Tells every server that this worker is done; errors do not matter any more."""
        if not self.open:
            return
        for link in self.links:
            link.begin(Request(Kind.GOODBYE, {}))
            with suppress(OSError):
                link.sock.settimeout(MARGIN_S)
                link.sock.sendall(b"".join(link.outgoing))
        self.abort()

    def abort(self) -> None:
        """Closes all connections without a goodbye: servers take this worker for lost."""
        self.open = False
        for link in self.links:
            link.sock.close()

    def _move(self, what: str) -> None:
        with selectors.DefaultSelector() as selector:
            for link in self.links:
                selector.register(link.sock, _events(link), link)
            end = time.monotonic() + self._limit_s
            while busy := [link for link in self.links if link.busy]:
                moved = 0
                for key, events in selector.select(max(0.0, end - time.monotonic())):
                    moved += self._serve(key.data, events, what)
                    if not key.data.busy:
                        selector.unregister(key.data.sock)
                    elif key.events != _events(key.data):
                        selector.modify(key.data.sock, _events(key.data), key.data)
                if moved:
                    end = time.monotonic() + self._limit_s
                elif time.monotonic() >= end:
                    raise DeadlineError(
                        f"rank {self._rank} heard nothing for {self._limit_s:g} s in its {what} "
                        f"from {', '.join(link.name for link in busy)}",
                        "look whether that server runs and the network between is whole",
                    )

    def _serve(self, link: Link, events: int, what: str) -> int:
        try:
            moved = link.send_some() if events & selectors.EVENT_WRITE and link.outgoing else 0
            if events & selectors.EVENT_READ:
                moved += link.receive_some()
            return moved
        except _LostError as error:
            raise ServerLostError(
                f"{link.name} was lost in the {what}, says rank {self._rank}: {error}",
                "look at the output of that server: it failed or was killed first",
            ) from error
        except ProtocolError as error:
            if link.told:
                raise
            raise ProtocolError(
                f"rank {self._rank} cannot read {link.name} in the {what}: {error.message}",
                error.fix,
            ) from error


def _events(link: Link) -> int:
    writes = selectors.EVENT_WRITE if link.outgoing else 0
    return selectors.EVENT_READ | writes
