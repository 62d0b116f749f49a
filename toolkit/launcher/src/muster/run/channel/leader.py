"""The leader's end of the control channel: it listens, admits, and notices who goes away.

Promises: S03, S19.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol, get_args

from muster.run.base.loop import Loop, Timer
from muster.run.channel import wire
from muster.run.channel.handshake import Handshake, parse_hello, share_of_files
from muster.run.channel.identity import Hello, Identity, briefs, disagreement
from muster.run.channel.messages import (
    Message,
    Question,
    StagedHost,
    ToHost,
    ToLeader,
    WireError,
    to_wire,
)
from muster.run.channel.session import Session, family, host_port
from muster.run.channel.suspension import SuspensionGuard
from muster.types.deadlines import Deadlines
from muster.types.errors import ClusterError

PENDING_LIMIT = 64  # or the number of hosts, if more: all of them may come at once
BACKLOG = 4096  # connections that the kernel holds until they are accepted
HANDSHAKE_S = 5.0
REST_S = 0.1
_FROM_HOSTS = (*get_args(ToLeader), *get_args(Question))


class LeaderEvents(Protocol):
    """Calls of the listening end, all on the loop's thread."""

    def peer_joined(self, host: int) -> None: ...
    def peer_disagrees(self, host: int, what: str) -> None: ...
    def peer_said(self, host: int, message: ToLeader | Question) -> None: ...
    def peer_silent(self, host: int, silent_s: float) -> None: ...
    def peer_heard_again(self, host: int) -> None: ...
    def peer_suspect(self, host: int) -> None: ...
    def peer_recovered(self, host: int) -> None: ...
    def peer_freed(self, host: int) -> None: ...
    def peer_lost(self, host: int, last_heard: float, why: str) -> None: ...


class _Peer:
    """One follower, with its session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.suspect_s: float | None = None
        self.silent = False  # and that was reported
        self.left = False  # it has ended, or was given up
        self.welcomes = 0  # given to it when it came back
        self.turn = 0  # which of them is in use


class Leader:
    """The listening end of the control channel.

    `admits(host, address, done)` checks an address against the host's name and calls `done(bool)`
    on the loop's thread; it is asked only when there is no job secret. `warn` takes a sentence
    about this host that its log should hold.
    """

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        names: Sequence[str],
        deadlines: Deadlines,
        events: LeaderEvents,
        admits: Callable[[int, str, Callable[[bool], None]], None],
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.strict = False  # after the ready barrier only the holder of the job key comes back
        self._loop = loop
        self._identity = identity
        self._names = names
        self._deadlines = deadlines
        self._events = events
        self._admits = admits
        self._warn = warn
        self._key = os.urandom(wire.KEY_BYTES)
        self._peers: dict[int, _Peer] = {}
        self._pending: dict[Handshake, None] = {}  # the oldest first
        self.waiting_limit = share_of_files(max(PENDING_LIMIT, len(names)))
        self._expiry: Timer | None = None  # one for all: floods leave no trail of timers
        self._warned = False
        self._suspension = SuspensionGuard(deadlines)
        self._listener: socket.socket | None = None
        self._closing = False
        self._closed = False

    def listen(
        self,
        address: str,
        port: int,
        holder_of: Callable[[str, int], str | None] = lambda _address, _port: None,
    ) -> None:
        """Binds the control port. Raises ClusterError, with the port's holder, when it cannot."""
        listener = socket.socket(family(address), socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            holder = holder_of(address, port)
            what = f"the control port {host_port(address, port)} cannot be bound: {error.strerror}"
            if holder is not None:
                what = f"port {port} (control) is in use by {holder} on {self._names[0]}"
            raise ClusterError(
                what,
                "end the process that holds it, or set MUSTER_CONTROL_PORT on every host",
            ) from error
        listener.setblocking(False)
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)
        self._loop.after(self._sweep_s, self._sweep)

    @property
    def waiting(self) -> int:
        """Connections that have not proved yet that they are of the job."""
        return len(self._pending)

    def session(self, host: int) -> Session:
        """Of a host that has joined: its messages, and the connection that they use now."""
        return self._peers[host].session

    def send(self, host: int, message: ToHost | Question) -> None:
        """To one host that has joined; otherwise nothing."""
        peer = self._peers.get(host)
        if peer is not None:
            peer.session.send(message)

    def send_all(self, message: ToHost) -> None:
        """To all that have joined. Encoded once: facts of 2,000 hosts take seconds otherwise."""
        fields = wire.encode(to_wire(message))
        for peer in list(self._peers.values()):
            peer.session.send_encoded(fields)

    def job_secret(self, purpose: str) -> str:
        """A secret that every admitted host derives alike, and no other process can."""
        return wire.derive(self._key, "secret", purpose.encode()).hex()

    def open_connections(self) -> int:
        """Followers that have not closed yet."""
        return sum(peer.session.frames is not None for peer in self._peers.values())

    def unconfirmed(self) -> list[int]:
        """Hosts that have not confirmed all messages and are not lost."""
        peers = self._peers.items()
        return [host for host, peer in peers if not (peer.left or peer.session.confirmed)]

    def expect_closes(self) -> None:
        """From now on a connection may end once its host has confirmed everything."""
        self._closing = True
        for peer in self._peers.values():
            peer.left = peer.left or (peer.session.frames is None and peer.session.confirmed)

    def close(self) -> None:
        """Closes everything."""
        self._closed = True
        for handshake in list(self._pending):
            self._drop(handshake)
        for peer in self._peers.values():
            peer.session.detach()
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
            self._listener = None

    @property
    def _sweep_s(self) -> float:
        return min(self._deadlines.answer_s, self._deadlines.reconnect_s / 2)

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        try:
            sock, (address, *_) = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._rest(error)
            return
        if self.waiting >= self.waiting_limit:
            self._drop_oldest()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = Handshake(self._loop, sock, address, self._hello, self._done_with)
        except OSError as error:
            sock.close()
            self._rest(error)
            return
        self._pending[handshake] = None
        if self._expiry is None:
            self._expiry = self._loop.after(HANDSHAKE_S, self._expire)
        handshake.begin()

    def _rest(self, error: OSError) -> None:
        """Nothing can be accepted, for want of descriptors as a rule: makes room and looks again
        in a moment. A listener that stays readable would take the time of all joined hosts."""
        assert self._listener is not None
        if not self._warned:
            self._warned = True
            what = f"a connection could not be accepted: {error.strerror}"
            self._warn(f"{what}; trying again every {REST_S:g} s (ulimit -n)")
        for _ in range((len(self._pending) + 1) // 2):
            self._drop_oldest()
        self._loop.forget(self._listener.fileno())
        self._loop.after(REST_S, self._listen_again)

    def _listen_again(self) -> None:
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _drop_oldest(self) -> None:
        """Drops the longest-waiting connection, so that idle ones cannot keep a host out."""
        idle = (one for one in self._pending if not one.said_hello)
        self._drop(next(idle, next(iter(self._pending))))

    def _expire(self) -> None:
        """Drops those whose time is over, and sets the alarm for the next."""
        self._expiry = None
        now = time.monotonic()
        for handshake in list(self._pending):
            left_s = handshake.since_s + HANDSHAKE_S - now
            if left_s > 0:
                self._expiry = self._loop.after(left_s, self._expire)
                return
            self._drop(handshake)

    def _drop(self, handshake: Handshake) -> None:
        handshake.frames.close()
        self._done_with(handshake)

    def _done_with(self, handshake: Handshake) -> None:
        self._pending.pop(handshake, None)

    def _hello(self, handshake: Handshake, fields: list[object]) -> None:
        """Checks the identity; a peer from another job is dropped silently."""
        hello = parse_hello(fields, self._identity, self._names)
        if hello is None or handshake.said_hello:
            self._drop(handshake)
            return
        handshake.said_hello = True
        parts = (handshake.nonce, bytes.fromhex(hello.nonce), str(hello.host_index).encode())
        if hello.resume:
            self._resume(handshake, hello, parts)
            return
        if self._is_taken(hello.host_index):
            self._drop(handshake)
            return
        if self._identity.secret:
            proof = wire.derive(self._identity.secret, "follower", *parts)
            if not wire.equal(proof.hex(), hello.proof):
                self._drop(handshake)
                return
            self._welcome(handshake, hello, parts)
            return
        self._admits(
            hello.host_index,
            handshake.address,
            lambda good: self._welcome(handshake, hello, parts) if good else self._drop(handshake),
        )

    def _is_taken(self, host: int) -> bool:
        peer = self._peers.get(host)
        return peer is not None and (self.strict or peer.suspect_s is None)

    def _welcome(self, handshake: Handshake, hello: Hello, parts: tuple[bytes, ...]) -> None:
        if handshake not in self._pending:
            return
        if self._is_taken(hello.host_index):  # by another one, while the name was looked up
            self._drop(handshake)
            return
        secret = self._identity.secret
        key = wire.masked(self._key, secret, *parts) if secret else self._key
        proof = wire.welcome_proof(secret or self._key, parts, 0)
        handshake.frames.send(["welcome", proof, key.hex(), 0])
        if handshake.frames.closed:
            return
        replaced = self._peers.get(hello.host_index)
        if replaced is not None:
            replaced.session.detach()
            self._events.peer_freed(hello.host_index)
        host = hello.host_index
        session = Session(lambda message: self._said(host, message))
        peer = self._peers[host] = _Peer(session)
        handshake.frames.use_key(wire.derive(self._key, "session", *parts))
        self._attach(handshake, peer, host, 0)
        self._events.peer_joined(host)
        mine = briefs(self._identity.agreed)
        what = disagreement(mine, hello.agreed, self._identity.name, self._names[host])
        if what:
            self._events.peer_disagrees(host, what)

    def _resume(self, handshake: Handshake, hello: Hello, parts: tuple[bytes, ...]) -> None:
        """Welcomes a host that is back. Its connection before is used until it speaks on this one,
        so that a host which tries several at a time may close all but one."""
        host, peer = hello.host_index, self._peers.get(hello.host_index)
        proof = wire.resume_proof(self._key, parts, hello.received)
        if peer is None or not wire.equal(proof, hello.proof):
            self._drop(handshake)
            return
        received = peer.session.received
        answer = wire.welcome_proof(self._key, parts, received)
        handshake.frames.send(["welcome", answer, "", received])
        if handshake.frames.closed:
            return
        peer.welcomes += 1
        turn = peer.welcomes

        def speaks(payload: list[object]) -> None:
            # its place is another's by now, or it speaks on a later connection already
            if self._peers.get(host) is not peer or turn < peer.turn:
                self._drop(handshake)
                return
            peer.turn = turn
            peer.session.detach()
            self._attach(handshake, peer, host, hello.received)
            if peer.suspect_s is not None:
                peer.suspect_s = None
                self._events.peer_recovered(host)
            self._payload(peer, payload)

        handshake.frames.use_key(wire.derive(self._key, "session", *parts))
        handshake.frames.on_payload = speaks

    def _attach(self, handshake: Handshake, peer: _Peer, host: int, heard: int) -> None:
        frames = handshake.frames
        frames.on_payload = lambda payload: self._payload(peer, payload)
        frames.on_end = lambda why: self._ended(host, peer)
        self._done_with(handshake)
        peer.session.attach(frames, heard)

    def _payload(self, peer: _Peer, payload: list[object]) -> None:
        beat = peer.session.take(payload)
        if beat is None:
            return
        if beat[0] != "h" or len(beat) != 3 or not isinstance(beat[2], float):
            raise WireError("a malformed heartbeat")
        if peer.session.frames is not None:
            peer.session.frames.send(["e", peer.session.received, beat[2], time.monotonic()])

    def _said(self, host: int, message: Message) -> None:
        """Hosts do not give orders to the leader or speak for other hosts."""
        if not isinstance(message, _FROM_HOSTS) or (
            isinstance(message, StagedHost) and message.facts.host_index != host
        ):
            raise WireError(f"a {type(message).__name__} that it may not send")
        self._events.peer_said(host, message)

    def _ended(self, host: int, peer: _Peer) -> None:
        peer.session.frames = None
        if peer.left or self._closed or self._peers.get(host) is not peer:
            return
        if self._closing and peer.session.confirmed:
            peer.left = True
            return
        peer.suspect_s = time.monotonic()
        self._events.peer_suspect(host)

    def _sweep(self) -> None:
        """Looks for hosts that are silent or did not come back."""
        if self._closed:
            return
        now = self._loop.read_s
        spared = self._suspension.spares(now)
        for host, peer in list(self._peers.items()):
            if peer.left:
                continue
            why = self._overdue(peer, now, spared)
            if why:
                self._give_up(host, peer, why)
            elif peer.suspect_s is None and not spared:
                self._report_silence(host, peer, now - peer.session.heard_s)
        self._loop.after(self._sweep_s, self._sweep)

    def _overdue(self, peer: _Peer, now: float, spared: bool) -> str:
        """Why the host is given up now, or "". A connection that ends during a long silence is no
        news of its host: then the silence goes on to count."""
        heard_s, limits = peer.session.heard_s, self._deadlines
        if peer.suspect_s is not None and peer.suspect_s - heard_s < limits.reconnect_s:
            gone = now - peer.suspect_s >= limits.reconnect_s
            return "its connection ended and did not come back" if gone else ""
        silent = now - heard_s
        lost = silent >= limits.lost_after_s and not spared
        return f"no heartbeat for {silent:.0f} s" if lost else ""

    def _report_silence(self, host: int, peer: _Peer, silent: float) -> None:
        """Tells where a long silence begins and where it ends, once each."""
        if peer.silent == (silent >= self._deadlines.warn_after_s):
            return
        peer.silent = not peer.silent
        if peer.silent:
            self._events.peer_silent(host, silent)
        else:
            self._events.peer_heard_again(host)

    def _give_up(self, host: int, peer: _Peer, why: str) -> None:
        peer.left = True
        last = peer.session.heard_s
        peer.session.detach()
        if self.strict:
            self._events.peer_lost(host, last, why)
        elif not self._closing:
            del self._peers[host]
            self._events.peer_freed(host)
