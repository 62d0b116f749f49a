"""A follower's end of the control channel: it finds the leader, proves itself, and stays in touch.

Promises: F20, F23.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from muster.run.base.loop import Loop
from muster.run.channel import wire
from muster.run.channel.attempt import Attempt
from muster.run.channel.identity import PROTOCOL, Identity, brief, briefs
from muster.run.channel.messages import Message, Question, ToLeader, WireError
from muster.run.channel.session import Frames, Session, host_port
from muster.run.channel.suspension import SuspensionGuard
from muster.types.deadlines import Deadlines

CONNECT_S = 5.0
LEAST_PATIENCE_S = 0.1
FIRST_RETRY_S = 0.05
LAST_RETRY_S = 2.0


class FollowerEvents(Protocol):
    """Calls of the connecting end, all on the loop's thread."""

    def leader_joined(self) -> None: ...
    def leader_unreachable(self, why: str) -> None: ...
    def leader_said(self, message: Message) -> None: ...
    def leader_silent(self, silent_s: float) -> None: ...
    def leader_heard_again(self) -> None: ...
    def leader_lost(self, why: str) -> None: ...


class Follower:
    """The connecting end. While the leader is silent it tries new connections beside the one that
    it has, which may only wait for TCP to send again, and goes on with whichever works first.

    `resolve(done)` finds the leader's addresses off the loop's thread and calls
    `done(addresses)` on it; `source`: the address to connect from, "" for any.
    """

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
        self.clock_offset_s = 0.0  # leader's monotonic clock minus this host's
        self.round_trip_s: float | None = None  # of the heartbeat that measured it
        self.address = ""  # where the leader was found
        self.session = Session(events.leader_said)
        self.job_key = b""  # what proves a connection that comes back, once admitted
        self._loop = loop
        self._identity = identity
        self._resolve = resolve
        self._port = port
        self._source = source
        self._deadlines = deadlines
        self._events = events
        self._best_rtt_s = float("inf")
        self._addresses: list[str] = []
        self._attempts: set[Attempt] = set()
        self._replaced: list[Frames] = []  # until the leader has taken to the one in their place
        self._retry_s = FIRST_RETRY_S
        self._last_error = "its name does not resolve"
        self._back_by: float | None = None
        self._silent = False  # and that was reported
        self._suspension = SuspensionGuard(deadlines)
        self._over = False

    def join(self, limit_s: float) -> None:
        """Tries every address of the leader until it is admitted or the time is over."""
        self._loop.after(limit_s, self._give_up)
        self._next_address()

    def send(self, message: ToLeader | Question) -> None:
        """To the leader, now or when the connection is back."""
        self.session.send(message)

    def job_secret(self, purpose: str) -> str:
        """As `Leader.job_secret`; to be asked for once admitted."""
        return wire.derive(self.job_key, "secret", purpose.encode()).hex()

    def close(self) -> None:
        """Closes for good; no call follows."""
        self._over = True
        self.session.detach()
        self._drop_others()

    def confirm(self) -> None:
        """Says at once how much has arrived, which else goes out with the next heartbeat."""
        if self.session.frames is not None:
            self.session.frames.send(["h", self.session.received, time.monotonic()])

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
        if not self.job_key and not self._over:
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
        attempt = Attempt(
            self._loop, address, self._port, self._source, self._hear_attempt, self._failed
        )
        self._attempts.add(attempt)
        attempt.begin(self._patience_s())

    def _patience_s(self) -> float:
        """How long one address may take to answer; less when the time to come back runs out."""
        if self._back_by is None:
            return CONNECT_S
        return max(LEAST_PATIENCE_S, min(CONNECT_S, self._back_by - time.monotonic()))

    def _failed(self, attempt: Attempt, why: str) -> None:
        """An attempt came to nothing. When joining: the next address, or again in a while."""
        if attempt not in self._attempts:
            return
        self._attempts.discard(attempt)
        attempt.close()
        self._last_error = f"{why} at {host_port(attempt.address, self._port)}"
        if not self.job_key:
            if self._addresses:
                self._next_address()
            else:
                self._later()
        elif attempt.refused and self._back_by is not None:
            self._lose("its port is closed")

    def _drop_others(self) -> None:
        """Closes every connection but the one in use."""
        for attempt in self._attempts:
            attempt.close()
        self._attempts.clear()
        for frames in self._replaced:
            frames.close()
        self._replaced.clear()

    # handshake

    def _hear_attempt(self, attempt: Attempt, fields: list[object]) -> None:
        if attempt.heard == 1:
            self._challenged(attempt, fields)
        else:
            self._welcomed(attempt, fields)

    def _challenged(self, attempt: Attempt, fields: list[object]) -> None:
        name, protocol, nonce = fields
        if name != "challenge" or protocol != PROTOCOL or not isinstance(nonce, str):
            raise WireError("no challenge of this protocol")
        mine = os.urandom(wire.NONCE_BYTES)
        me = self._identity
        attempt.parts = (bytes.fromhex(nonce), mine, str(me.host_index).encode())
        resume = bool(self.job_key)
        proof = ""
        if resume:
            proof = wire.resume_proof(self.job_key, attempt.parts, self.session.received)
        elif me.secret:
            proof = wire.derive(me.secret, "follower", *attempt.parts).hex()
        attempt.send(
            [
                "hello",
                PROTOCOL,
                brief(me.job),
                me.host_index,
                me.name,
                briefs(me.agreed),
                mine.hex(),
                proof,
                resume,
                self.session.received,
            ]
        )

    def _welcomed(self, attempt: Attempt, fields: list[object]) -> None:
        name, proof, key, heard = fields
        if name != "welcome" or not isinstance(proof, str) or not isinstance(key, str):
            raise WireError("no welcome")
        if not isinstance(heard, int):  # nothing of it is proved yet: it may be infinite
            raise WireError("no welcome")
        fresh = not self.job_key
        job_key = self._key_of(attempt, key) if fresh else self.job_key
        prover = (self._identity.secret or job_key) if fresh else job_key
        if not wire.equal(wire.welcome_proof(prover, attempt.parts, heard), proof):
            raise WireError("a proof that does not fit: it is not the leader of this job")
        self.job_key = job_key
        self._attempts.discard(attempt)
        self._carry_on(attempt, heard)
        if fresh:
            self._events.leader_joined()
            self._beat()
            self._look()
        else:
            self.confirm()  # the leader changes over to this connection with its first frame

    def _key_of(self, attempt: Attempt, given: str) -> bytes:
        """The job key of a first welcome."""
        key, secret = bytes.fromhex(given), self._identity.secret
        if len(key) != wire.KEY_BYTES:
            raise WireError("no key")
        return wire.masked(key, secret, *attempt.parts) if secret else key

    def _carry_on(self, attempt: Attempt, heard: int) -> None:
        """Uses the connection of the attempt. The one before is kept until the leader speaks on
        this one: it speaks on the other while its welcome may have been for nothing."""
        frames = attempt.hand_over(wire.derive(self.job_key, "session", *attempt.parts))
        frames.on_payload = lambda payload: self._payload(frames, payload)
        frames.on_end = lambda why: self._ended(frames, why)
        self.address = attempt.address
        self._back_by = None
        if self.session.frames is not None:
            self._replaced.append(self.session.frames)
        self.session.heard_s = time.monotonic()
        self.session.attach(frames, heard)

    # established

    def _payload(self, frames: Frames, payload: list[object]) -> None:
        echo = self.session.take(payload)
        if frames is self.session.frames and (self._attempts or self._replaced):
            self._drop_others()
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
            self.round_trip_s = now - sent
        else:
            self._best_rtt_s *= 1.1  # clocks drift: a measure is not to be too old, either

    def _beat(self) -> None:
        if not self._over:
            self.confirm()
            self._loop.after(self._deadlines.heartbeat_s, self._beat)

    def _look(self) -> None:
        """Judges the leader's silence, and tries a new connection while it lasts."""
        if self._over:
            return
        limits, now = self._deadlines, self._loop.read_s
        silent = now - self.session.heard_s
        spared = self._suspension.spares(now)
        if self._back_by is not None:
            if now >= self._back_by:
                self._lose(self._last_error)
                return
        elif not spared:
            if silent >= limits.lost_after_s:
                self._lose(f"no heartbeat for {silent:.0f} s")
                return
            self._report_silence(silent)
        if self.session.frames is None or silent >= limits.quiet_after_s:
            self._try(self.address)
        self._loop.after(limits.answer_s, self._look)

    def _report_silence(self, silent: float) -> None:
        """Tells where a long silence begins and where it ends, once each."""
        if self._silent == (silent >= self._deadlines.warn_after_s):
            return
        self._silent = not self._silent
        if self._silent:
            self._events.leader_silent(silent)
        else:
            self._events.leader_heard_again()

    def _ended(self, frames: Frames, why: str) -> None:
        """A connection is gone. The one that it replaced is used again: the leader still uses that
        one unless a message of this host arrived on the later one."""
        if self._over:
            return
        if frames in self._replaced:
            self._replaced.remove(frames)
        if frames is not self.session.frames:
            return
        self.session.frames = None
        self._last_error = why
        if self._replaced:
            self.session.attach(self._replaced.pop(), 0)
            return
        now = time.monotonic()
        if now - self.session.heard_s < self._deadlines.reconnect_s:
            self._back_by = now + self._deadlines.reconnect_s
        # else the end of a long silence that counts already is no news of the leader
        if not self._attempts:
            self._try(self.address)

    def _lose(self, why: str) -> None:
        self.close()
        self._events.leader_lost(why)
