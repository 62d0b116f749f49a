"""A follower's end of the control channel: it finds the leader, proves itself, and stays in touch.

Source: protocol.md 2 and 6; reliability.md F20 to F23.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from muster.run import wire
from muster.run.identity import PROTOCOL, Identity, brief, briefs
from muster.run.link import Frames, Session
from muster.run.loop import Loop, Timer
from muster.run.messages import Message, ToLeader, WireError
from muster.run.patience import Patience
from muster.spec.deadlines import Deadlines

CONNECT_S = 5.0
LEAST_PATIENCE_S = 0.1
FIRST_RETRY_S = 0.05
LAST_RETRY_S = 2.0


class FollowerEvents(Protocol):
    """What the connecting end tells; all on the loop's thread."""

    def leader_joined(self) -> None: ...
    def leader_unreachable(self, why: str) -> None: ...
    def leader_said(self, message: Message) -> None: ...
    def leader_silent(self, silent_s: float) -> None: ...
    def leader_heard_again(self) -> None: ...
    def leader_lost(self, why: str) -> None: ...


class Follower:
    """`resolve(done)` finds the leader's addresses off the loop's thread and calls
    `done(addresses)` on it; `source`: the address to connect from, "" for any."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        resolve: Callable[[Callable[[Sequence[str]], None]], None],
        port: int,
        source: str,
        deadlines: Deadlines,
        events: FollowerEvents,
    ) -> None:
        self.clock_offset_s = 0.0  # leader's monotonic clock minus ours
        self.address = ""  # where the leader was found
        self._loop = loop
        self._identity = identity
        self._resolve = resolve
        self._port = port
        self._source = source
        self._deadlines = deadlines
        self._events = events
        self._session = Session(events.leader_said)
        self._key = b""
        self._best_rtt_s = float("inf")
        self._addresses: list[str] = []
        self._attempt: _Attempt | None = None
        self._retry_s = FIRST_RETRY_S
        self._last_error = "its name does not resolve"
        self._back_by: float | None = None
        self._silent = False  # and that was told
        self._patience = Patience(deadlines)
        self._over = False

    def join(self, limit_s: float) -> None:
        """Tries every address of the leader until it is admitted or the time is over."""
        self._loop.after(limit_s, self._give_up)
        self._next_address()

    def send(self, message: ToLeader) -> None:
        """To the leader, now or when the connection is back."""
        self._session.send(message)

    def job_secret(self, purpose: str) -> str:
        """As `Leader.job_secret`; to be asked for once admitted."""
        return wire.derive(self._key, "secret", purpose.encode()).hex()

    def close(self) -> None:
        """Closes for good; nothing is told any more."""
        self._over = True
        self._session.detach()
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    # joining

    def _next_address(self) -> None:
        if self._over:
            return
        if self._addresses:
            self._try(self._addresses.pop(0))
            return
        self._resolve(self._resolved)

    def _give_up(self) -> None:
        """The time to join is over, also when a name server or a connection still hangs."""
        if not self._key and not self._over:
            self.close()
            self._events.leader_unreachable(self._last_error)

    def _resolved(self, addresses: Sequence[str]) -> None:
        if self._over:
            return
        self._addresses = list(addresses)
        if self._addresses:
            self._next_address()
            return
        self._last_error = "its name does not resolve"
        self._later()

    def _later(self) -> None:
        self._loop.after(self._retry_s, self._next_address)
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 1.5)

    def _try(self, address: str) -> None:
        self._attempt = _Attempt(self, self._loop, address, self._port, self._source)
        self._attempt.begin(self._patience_s())

    def _patience_s(self) -> float:
        """How long one address may take to answer; less when the time to come back runs out."""
        if self._back_by is None:
            return CONNECT_S
        return max(LEAST_PATIENCE_S, min(CONNECT_S, self._back_by - time.monotonic()))

    def _failed(self, attempt: _Attempt, why: str) -> None:
        """An attempt came to nothing: try the next address, or again, or give up."""
        if self._attempt is not attempt or self._over:
            return
        attempt.close()
        self._attempt = None
        self._last_error = f"{why} at {attempt.address}:{self._port}"
        if self._back_by is None:
            if self._addresses:
                self._next_address()
            else:
                self._later()
            return
        if attempt.refused or time.monotonic() >= self._back_by:
            self._lose("its port is closed" if attempt.refused else why)
            return
        self._loop.after(0.1, self._come_back)

    # handshake

    def _challenged(self, attempt: _Attempt, fields: list[object]) -> None:
        name, protocol, nonce = fields
        if name != "challenge" or protocol != PROTOCOL or not isinstance(nonce, str):
            raise WireError("no challenge of this protocol")
        mine = os.urandom(wire.NONCE_BYTES)
        me = self._identity
        attempt.parts = (bytes.fromhex(nonce), mine, str(me.position).encode())
        resume = bool(self._key)
        proof = ""
        if resume:
            proof = wire.derive(self._key, "resume", *attempt.parts).hex()
        elif me.secret:
            proof = wire.derive(me.secret, "follower", *attempt.parts).hex()
        attempt.send(
            [
                "hello",
                PROTOCOL,
                brief(me.job),
                me.position,
                me.name,
                briefs(me.agreed),
                mine.hex(),
                proof,
                resume,
                self._session.received,
            ]
        )

    def _welcomed(self, attempt: _Attempt, fields: list[object]) -> None:
        name, proof, key, heard = fields
        if name != "welcome" or not isinstance(proof, str) or not isinstance(key, str):
            raise WireError("no welcome")
        secret = self._identity.secret
        fresh = not self._key
        job_key = bytes.fromhex(key) if fresh else self._key
        if fresh and len(job_key) != wire.KEY_BYTES:
            raise WireError("no key")
        if fresh and secret:
            job_key = wire.masked(job_key, secret, *attempt.parts)
        prover = (secret or job_key) if fresh else job_key
        if not wire.equal(wire.derive(prover, "leader", *attempt.parts).hex(), proof):
            raise WireError("a proof that does not fit: it is not the leader of this job")
        self._key = job_key
        self._attempt = None
        self.address = attempt.address
        frames = attempt.hand_over(wire.derive(job_key, "session", *attempt.parts))
        frames.on_payload = self._payload
        frames.on_end = self._ended
        self._back_by = None
        self._session.attach(frames, int(heard))  # type: ignore[call-overload]
        if fresh:
            self._events.leader_joined()
            self._beat()
            self._watch_silence()

    # established

    def _payload(self, payload: list[object]) -> None:
        echo = self._session.take(payload)
        if echo is None or echo[0] != "e":
            return
        try:
            _, _, sent, leader_now = echo
            sent, leader_now = float(sent), float(leader_now)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise WireError("a malformed answer to a heartbeat") from error
        now = time.monotonic()
        if now - sent <= self._best_rtt_s * 1.5:
            self._best_rtt_s = min(self._best_rtt_s, now - sent)
            self.clock_offset_s = leader_now - (sent + now) / 2

    def _beat(self) -> None:
        if self._over:
            return
        if self._session.frames is not None:
            self._session.frames.send(["h", self._session.received, time.monotonic()])
        self._loop.after(self._deadlines.heartbeat_s, self._beat)

    def _watch_silence(self) -> None:
        if self._over:
            return
        now = self._loop.read_s
        spared = self._patience.spares(now)
        if self._session.frames is not None and not spared:
            silent = now - self._session.heard_s
            if silent >= self._deadlines.lost_after_s:
                self._lose(f"no heartbeat for {silent:.0f} s")
                return
            self._tell_silence(silent)
        self._loop.after(min(1.0, self._deadlines.heartbeat_s), self._watch_silence)

    def _tell_silence(self, silent: float) -> None:
        """Tells where a long silence begins and where it ends, once each."""
        if self._silent == (silent >= self._deadlines.warn_after_s):
            return
        self._silent = not self._silent
        if self._silent:
            self._events.leader_silent(silent)
        else:
            self._events.leader_heard_again()

    def _ended(self, why: str) -> None:
        self._session.frames = None
        if self._over:
            return
        self._last_error = why
        self._back_by = time.monotonic() + self._deadlines.reconnect_s
        self._come_back()

    def _come_back(self) -> None:
        if not self._over and self._session.frames is None and self._attempt is None:
            self._try(self.address)

    def _lose(self, why: str) -> None:
        self.close()
        self._events.leader_lost(why)


class _Attempt:
    """One try to reach the leader at one address, up to its welcome."""

    def __init__(
        self, follower: Follower, loop: Loop, address: str, port: int, source: str
    ) -> None:
        self.address = address
        self.refused = False
        self.parts: tuple[bytes, ...] = ()
        self._follower = follower
        self._loop = loop
        self._target = (address, port)
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._source = source
        self._frames: Frames | None = None
        self._timer: Timer | None = None
        self._step = 0

    def begin(self, limit_s: float) -> None:
        """Connects without waiting; everything that goes wrong is told to the follower."""
        self._sock.setblocking(False)
        silence = f"no answer in {limit_s:.1f} s"
        self._timer = self._loop.after(limit_s, lambda: self._fail(silence))
        try:
            if self._source:
                self._sock.bind((self._source, 0))
            self._sock.connect(self._target)
        except BlockingIOError:
            pass
        except OSError as error:
            # told later, so that the follower never runs inside itself
            text = error.strerror or str(error)
            self.refused = isinstance(error, ConnectionRefusedError)
            self._loop.after(0, lambda: self._fail(text))
            return
        self._loop.watch(self._sock.fileno(), self._connected, write=True)

    def send(self, message: list[object]) -> None:
        if self._frames is not None:
            self._frames.send(message)

    def hand_over(self, key: bytes) -> Frames:
        """The connection, authenticated from here on."""
        assert self._frames is not None and self._timer is not None
        self._timer.cancel()
        self._frames.use_key(key)
        return self._frames

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._frames is not None:
            self._frames.close()
        else:
            self._loop.forget(self._sock.fileno())
            self._sock.close()

    def _fail(self, why: str) -> None:
        self._follower._failed(self, why)

    def _connected(self, events: int) -> None:
        self._loop.forget(self._sock.fileno())
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.refused = code == 111
            self._fail(os.strerror(code).lower())
            return
        if not events & (select.EPOLLOUT | select.EPOLLIN):
            self._fail("the connection ended")
            return
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames(
            self._loop, self._sock, wire.TO_LEADER, wire.TO_FOLLOWER, self._payload, self._fail
        )

    def _payload(self, fields: list[object]) -> None:
        self._step += 1
        try:
            if self._step == 1:
                self._follower._challenged(self, fields)
            else:
                self._follower._welcomed(self, fields)
        except (TypeError, ValueError) as error:
            raise WireError("a malformed handshake") from error
