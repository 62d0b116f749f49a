"""This host's end of the control channel: the leader's, with the coordinator, or a follower's.

Both offer the same few verbs, so that the supervisor need not know which one it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Union

from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import (
    HostEnded,
    Leave,
    Message,
    Query,
    Question,
    Reply,
    StartDaemon,
    Stopping,
    ToHost,
    ToLeader,
    Verdict,
)
from muster.run.job import events as e
from muster.run.job.context import JobContext
from muster.run.job.coordinator import Coordinator
from muster.types.errors import InternalError
from muster.types.outcome import Failed
from muster.types.steps import Log

if TYPE_CHECKING:
    from muster.run.channel.leader import Leader


REFUSED_S = 5.0  # how long a host whose request is bad looks for the leader
LEADER_FIRST_S = 1.0  # a host that cannot join gives up so much later than the leader gives it up
CLOCK_S = 0.001  # a smaller change of the clocks' offset is not recorded
ASKERS = 64  # that claim to be one host while its name is looked up


class LeaderEndpoint:
    """The leader's end of the control channel, with the coordinator.

    `happen` takes the events of this host's own life, `on_question` what is asked beside it.
    """

    clock_offset_s = 0.0
    clock_unsure_s = 0.0

    def __init__(
        self,
        loop: Loop,
        context: JobContext,
        happen: Callable[[e.Event], None],
        log: Log,
        recorder: Recorder,
    ) -> None:
        cluster = context.cluster
        self.leader_address = context.address
        self._loop = loop
        self._context = context
        self._happen = happen
        self.on_question: Callable[[int, Question], None] = lambda _host, _question: None
        self._log = log
        self._recorder = recorder
        self._me = cluster.current
        self._names = tuple(host.name for host in cluster.hosts)
        self._ended: dict[int, HostEnded] = {}
        self._addresses: dict[int, Sequence[str]] = {}
        self._asked: dict[int, list[tuple[str, Callable[[bool], None]]]] = {}
        self._released = False
        self._stop_by = float("inf")  # when a stop from outside is to be over
        self._began_s = time.monotonic()
        helpers = sorted(set(range(len(cluster.hosts))) - set(cluster.distribution))
        self._coordinator = Coordinator(
            self._names, self._me, helpers, context.deadlines, time.monotonic()
        )
        self._leader = self._listener() if len(self._names) > 1 else None

    def begin(self) -> None:
        """Listens, and joins itself. Raises ClusterError when the port cannot be bound."""
        if self._leader is not None:
            context = self._context
            self._leader.listen(context.address, context.control_port, context.port_holder)
        self._coordinator.joined(self._me, time.monotonic())
        self._happen(e.Joined())
        self._carry_out()

    def send(self, message: ToLeader) -> None:
        self.peer_said(self._me, message)

    def ask(self, host: int, question: Question) -> None:
        """A question or an answer to another host, beside the life of the job."""
        if self._leader is not None:
            self._leader.send(host, question)

    def job_secret(self, purpose: str) -> str:
        """A secret of this job, the same on all hosts."""
        return self._leader.job_secret(purpose) if self._leader else os.urandom(32).hex()

    def start_daemon(self, host: int, asked: tuple[str, ...]) -> None:
        """Passes on a request of this host's launcher to another host."""
        self._recorder.event("daemon_asked", peer=self._names[host])
        self._send(host, StartDaemon(asked))

    def tick(self, now: float) -> None:
        if self._leader is not None:
            self._coordinator.not_reached(self._leader.unconfirmed(), now)
        self._coordinator.tick(now)
        self._carry_out()

    def files_written(self) -> None:
        self._released = True
        self._coordinator.files_written()
        self._carry_out()

    def linger(self, done: Callable[[], None]) -> None:
        """Waits until every living host has confirmed how the job ended, as long as a network may
        be cut or a stop from outside allows; then a little until they have closed.

        Hosts that have not joined are waited for only when this job was refused before it ran:
        each of them is to end with the same words.
        """
        if self._leader is None:
            done()
            return
        now, limits = time.monotonic(), self._context.deadlines
        self._leader.expect_closes()
        confirm_by = now + limits.lost_after_s + limits.leave_s
        self._wait(confirm_by, now + limits.leave_s, self._notify_by(now), done)

    def close(self) -> None:
        if self._leader is not None:
            self._leader.close()

    def ended(self) -> Mapping[str, HostEnded]:
        """What each host said when its ranks had ended, by its name."""
        return {self._names[i]: ended for i, ended in sorted(self._ended.items())}

    # calls of the listening end

    def peer_joined(self, host: int) -> None:
        self._say("join", f"{self._names[host]} joined", position=host)
        self._recorder.event("joined", peer=self._names[host])
        self._coordinator.joined(host, time.monotonic())
        self._carry_out()
        if self._released and self._leader is not None:
            self._leader.send(host, Leave())

    def peer_disagrees(self, host: int, what: str) -> None:
        self._coordinator.disagrees(host, what, time.monotonic())
        self._carry_out()

    def peer_said(self, host: int, message: ToLeader | Question) -> None:
        if isinstance(message, Query | Reply):
            self.on_question(host, message)
            return
        if isinstance(message, HostEnded) and self._coordinator.outcome is None:
            self._ended[host] = message  # a later one is no part of the outcome
        if isinstance(message, Stopping):
            total_s = self._context.deadlines.stop_total_s
            self._stop_by = min(self._stop_by, time.monotonic() + total_s)
        self._coordinator.heard(host, message, time.monotonic())
        self._carry_out()

    def peer_silent(self, host: int, silent_s: float) -> None:
        text = f"nothing heard from {self._names[host]} for {silent_s:.0f} s"
        self._say(
            "channel", text, level="WARNING", lost_after_s=self._context.deadlines.lost_after_s
        )

    def peer_heard_again(self, host: int) -> None:
        self._say("channel", f"{self._names[host]} is heard again")

    def peer_suspect(self, host: int) -> None:
        self._say("channel", f"the connection of {self._names[host]} ended", level="WARNING")
        self._coordinator.suspect(host, time.monotonic())

    def peer_recovered(self, host: int) -> None:
        self._say("channel", f"{self._names[host]} is back")
        self._coordinator.recovered(host, time.monotonic())
        self._carry_out()

    def peer_freed(self, host: int) -> None:
        self._say("join", f"{self._names[host]} left before the start", level="WARNING")
        self._coordinator.left_before_ready(host, time.monotonic())
        self._carry_out()

    def peer_lost(self, host: int, last_heard: float, why: str) -> None:
        self._say("channel", f"lost {self._names[host]}: {why}", level="ERROR")
        self._coordinator.lost(host, last_heard, why, time.monotonic())
        self._carry_out()

    def _say(self, component: str, text: str, level: str = "INFO", **facts: object) -> None:
        """A line about another host; none once this host has said its last."""
        if not self._released:
            self._log(component, text, level=level, **facts)

    def _listener(self) -> Leader:
        from muster.run.channel.leader import Leader  # hashing and sockets: only for several hosts

        context = self._context
        return Leader(
            self._loop, context.identity, self._names, context.deadlines, self, self._admits,
            lambda text: self._say("channel", text, level="WARNING"),
        )  # fmt: skip

    def _admits(self, host: int, address: str, done: Callable[[bool], None]) -> None:
        """Whether the address is one of the host's name."""
        if not self._context.checks_names or address in self._addresses.get(host, ()):
            done(True)
            return
        asked = self._asked.setdefault(host, [])
        if len(asked) >= ASKERS:  # the oldest of so many are dropped anyway
            done(False)
            return
        asked.append((address, done))
        if len(asked) > 1:
            return  # one look-up of a name at a time, however many say that they are that host
        from muster.run.base.resolver import in_background

        def resolved(addresses: Sequence[str]) -> None:
            self._addresses[host] = addresses
            for asker, answer in self._asked.pop(host):
                if asker not in addresses:
                    self._say_refused(host, asker, addresses)
                answer(asker in addresses)

        in_background(self._loop, lambda: self._context.resolve(self._names[host]), resolved)

    def _say_refused(self, host: int, address: str, addresses: Sequence[str]) -> None:
        self._say(
            "join",
            f"refused {address}: it says it is {self._names[host]}, whose name resolves "
            f"to {', '.join(addresses) or 'nothing'}",
            level="WARNING",
        )

    def _notify_by(self, now: float) -> float:
        """Until when to wait for hosts that have not joined, to send them the outcome."""
        limits = self._context.deadlines
        if not isinstance(self._coordinator.outcome, Failed) or self._coordinator.running:
            return now
        return min(now + limits.refusal_notify_s, self._began_s + limits.join_s)

    def _log_who_is_notified(self) -> None:
        """Once the outcome is known, and before this host's last lines."""
        now = time.monotonic()
        missing, left_s = self._coordinator.missing(), self._notify_by(now) - now
        if missing and left_s > 0:
            names = ", ".join(missing)
            self._log("job", f"waiting up to {left_s:.0f} s to tell {names} how the job ended")

    def _carry_out(self) -> None:
        for note in self._coordinator.notes:
            self._log("job", note, level="WARNING")  # a person who waits is to know for whom
            self._recorder.event("missing", text=note)
        self._coordinator.notes.clear()
        for order in self._coordinator.take_orders():
            if isinstance(order.message, Verdict) and order.host is None:
                self._log_who_is_notified()
            self._send(order.host, order.message)
        if self._leader is not None and self._coordinator.running:
            self._leader.strict = True

    def _send(self, host: int | None, message: ToHost) -> None:
        if self._leader is not None and host is None:
            self._leader.send_all(message)
        elif self._leader is not None and host is not None and host != self._me:
            self._leader.send(host, message)
        if host is None or host == self._me:
            self._happen(e.FromLeader(message))

    def _wait(
        self, confirm_by: float, close_by: float, notify_by: float, done: Callable[[], None]
    ) -> None:
        now, leader = time.monotonic(), self._leader
        unnotified = bool(self._coordinator.missing()) and now < notify_by
        open_ones = leader is not None and now < close_by and leader.open_connections() > 0
        limit = min(confirm_by, self._stop_by)
        unconfirmed = leader is not None and now < limit and bool(leader.unconfirmed())
        if unnotified or open_ones or unconfirmed:
            self._loop.after(0.01, lambda: self._wait(confirm_by, close_by, notify_by, done))
        else:
            done()


class FollowerEndpoint:
    """A follower's end of the control channel.

    `happen` takes the events of this host's own life.
    """

    def __init__(
        self,
        loop: Loop,
        context: JobContext,
        happen: Callable[[e.Event], None],
        log: Log,
        recorder: Recorder,
    ) -> None:
        from muster.run.base.resolver import in_background
        from muster.run.channel.follower import Follower

        self._context = context
        self._happen = happen
        self.on_question: Callable[[int, Question], None] = lambda _host, _question: None
        self._log = log
        self._recorder = recorder
        self._recorded_offset_s = float("inf")
        self._leader = context.cluster.leader.name
        self._own: HostEnded | None = None
        self._follower = Follower(
            loop,
            context.identity,
            lambda done: in_background(loop, lambda: context.resolve(self._leader), done),
            context.control_port,
            context.source,
            context.deadlines,
            self,
        )

    @property
    def clock_offset_s(self) -> float:
        return self._follower.clock_offset_s

    @property
    def clock_unsure_s(self) -> float:
        """What the offset may be off by."""
        return (self._follower.round_trip_s or 0.0) / 2

    @property
    def leader_address(self) -> str:
        return self._follower.address

    def begin(self) -> None:
        refused = self._context.host_error is not None
        self._limit_s = REFUSED_S if refused else self._context.deadlines.join_s
        self._log("join", f"looking for the leader {self._leader}", port=self._context.control_port)
        # the leader says first who is missing: an engine may end a job at the first host that ends
        self._follower.join(self._limit_s + (0.0 if refused else LEADER_FIRST_S))

    def send(self, message: ToLeader) -> None:
        if isinstance(message, HostEnded):
            self._own = message
            self._record_clock()  # of a job that no tick has seen
        self._follower.send(message)

    def ask(self, host: int, question: Question) -> None:
        """A question or an answer to the leader."""
        self._follower.send(question)

    def job_secret(self, purpose: str) -> str:
        return self._follower.job_secret(purpose)

    def start_daemon(self, host: int, asked: tuple[str, ...]) -> None:
        raise InternalError("only the leader's launcher may ask for launch daemons")

    def tick(self, now: float) -> None:
        self._record_clock()

    def _record_clock(self) -> None:
        """Records the offset of the clocks where it is new."""
        measured = self._follower
        changed_s = abs(measured.clock_offset_s - self._recorded_offset_s)
        if measured.round_trip_s is not None and changed_s > CLOCK_S:
            offset_s = self._recorded_offset_s = measured.clock_offset_s
            round_trip_s = measured.round_trip_s
            self._recorder.event("clock", offset_s=offset_s, round_trip_s=round_trip_s)

    def files_written(self) -> None:
        pass

    def linger(self, done: Callable[[], None]) -> None:
        self._follower.confirm()
        done()

    def close(self) -> None:
        self._follower.close()

    def ended(self) -> Mapping[str, HostEnded]:
        return {self._context.cluster.me.name: self._own} if self._own is not None else {}

    # calls of the connecting end

    def leader_joined(self) -> None:
        self._log("join", f"admitted by {self._leader}", address=self._follower.address)
        self._happen(e.Joined())

    def leader_unreachable(self, why: str) -> None:
        text = f"the leader {self._leader} could not be joined within {self._limit_s:g} s ({why})"
        self._happen(e.NotJoined(text))

    def leader_said(self, message: Message) -> None:
        if isinstance(message, Query | Reply):
            self.on_question(self._context.cluster.distribution[0], message)
            return
        self._happen(e.FromLeader(message))  # type: ignore[arg-type]

    def leader_silent(self, silent_s: float) -> None:
        text = f"nothing heard from {self._leader} for {silent_s:.0f} s"
        self._log(
            "channel", text, level="WARNING", lost_after_s=self._context.deadlines.lost_after_s
        )

    def leader_heard_again(self) -> None:
        self._log("channel", f"{self._leader} is heard again")

    def leader_lost(self, why: str) -> None:
        self._log("channel", f"lost the leader {self._leader}: {why}", level="ERROR")
        self._happen(e.LeaderLost(self._leader, why))

    _limit_s = 0.0


Endpoint = Union[LeaderEndpoint, FollowerEndpoint]  # noqa: UP007 - a runtime alias on 3.10
