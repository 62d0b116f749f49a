"""The leader's part of a job: what all hosts have said so far, and what follows from it.

Pure: events and the time go in, orders come out. It decides once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from muster.run.channel.messages import (
    Go,
    HostEnded,
    HostError,
    Leave,
    RankEnd,
    Ready,
    Registered,
    Report,
    StagedHost,
    Stop,
    Stopping,
    ToHost,
    ToLeader,
    Verdict,
    WindDown,
    facts_parts,
)
from muster.run.job.verdict import Loss, decide, placed
from muster.types.deadlines import Deadlines
from muster.types.machine import HostFacts
from muster.types.names import listed
from muster.types.outcome import Outcome, RankFailure
from muster.types.values import NamedTuple

NAMED = 5  # hosts that a line names
PROGRESS_S = 30.0
HELPERS_S = 60.0
HANG_UP_S = 5.0
P = TypeVar("P")


class Order(NamedTuple):
    """A message for one host, or for all that have joined (`host` None)."""

    host: int | None
    message: ToHost


class _Peer:
    """What is known of one host."""

    __slots__ = ("ended", "facts", "failed", "joined", "lost", "ready", "registered", "suspect_s")

    def __init__(self) -> None:
        self.joined = False
        self.facts: HostFacts | None = None
        self.ready = ""
        self.registered = False
        self.ended: HostEnded | None = None
        self.suspect_s: float | None = None
        self.lost = False
        self.failed = False

    @property
    def awaited(self) -> bool:
        """Whether it may still say how its ranks ended."""
        here = self.joined and self.ended is None and not self.lost
        return here or self.suspect_s is not None


class Barrier(Generic[P]):
    """Whether every one of `peers` has passed. It asks the one first that had not the last time,
    so that asking after each arrival costs little however many hosts there are."""

    def __init__(self, peers: Sequence[P], passed: Callable[[P], bool]) -> None:
        self._peers = peers
        self._passed = passed
        self._at = 0

    def met(self) -> bool:
        """Of the peers as they are now: one that passed may be replaced by one that has not."""
        count = len(self._peers)
        for place in range(self._at, self._at + count):
            if not self._passed(self._peers[place % count]):
                self._at = place % count
                return False
        return True


class Coordinator:
    """What all hosts have said so far, and what the leader orders next.

    `names`: of all hosts; `leader`: index of this one; `helpers`: hosts without ranks.
    """

    def __init__(
        self,
        names: Sequence[str],
        leader: int,
        helpers: Sequence[int],
        deadlines: Deadlines,
        now: float,
    ) -> None:
        self.names = names
        self.outcome: Outcome | None = None
        self.notes: list[str] = []
        self.running = False
        self._leader = leader
        self._helpers = frozenset(helpers)
        self._deadlines = deadlines
        self._grace_s = deadlines.failfast_grace_s + deadlines.drain_s + HANG_UP_S
        self._peers = [_Peer() for _ in names]
        self._all_joined = Barrier(self._peers, lambda peer: peer.joined)
        self._all_staged = Barrier(self._peers, lambda peer: peer.facts is not None)
        self._all_ready = Barrier(self._peers, lambda peer: bool(peer.ready))
        self._none_awaited = Barrier(self._peers, lambda peer: not peer.awaited)
        self._orders: list[Order] = []
        self._failures: list[RankFailure] = []
        self._errors: list[HostError] = []
        self._losses: list[Loss] = []
        self._stopped_by = ""
        self._stopping = False
        self._stop_s = now
        self._decide_by: float | None = None
        self._join_by = now + deadlines.join_s
        self._stage_by = now + deadlines.stage_s
        self._start_by: float | None = None
        self._progress_at = now + PROGRESS_S
        self._helpers_at: float | None = None
        self._left: set[str] = set()
        self._ends_with_rank0 = False

    def take_orders(self) -> list[Order]:
        """What is to be sent now; each order is given once."""
        orders, self._orders = self._orders, []
        return orders

    def joined(self, host: int, now: float) -> None:
        """A host was admitted. A host that joins after the verdict receives it at once."""
        peer = self._peers[host]
        peer.joined = True
        peer.suspect_s = None
        if self.outcome is not None:
            self._orders.append(Order(host, Verdict(self.outcome)))
        elif self._stopping:
            self._orders.append(Order(host, Stop(bool(self._stopped_by), self._stopped_by)))
        if self._all_joined.met():
            self._progress_at = now + PROGRESS_S

    def left_before_ready(self, host: int, now: float) -> None:
        """A connection closed before the ready barrier: the place is free again."""
        self._peers[host] = _Peer()
        self._left.add(self.names[host])
        self._try_to_decide(now)

    def suspect(self, host: int, now: float) -> None:
        """The host's connection ended without a leave."""
        if self._peers[host].suspect_s is None:
            self._peers[host].suspect_s = now

    def recovered(self, host: int, now: float) -> None:
        """The host is back. The others may have ended meanwhile."""
        self._peers[host].suspect_s = None
        self._try_to_decide(now)

    def lost(self, host: int, last_heard: float, why: str, now: float) -> None:
        """The host will not come back."""
        peer = self._peers[host]
        if peer.lost or self.outcome is not None:
            return
        since = peer.suspect_s if peer.suspect_s is not None else last_heard
        missed = since if peer.suspect_s is not None else last_heard + self._deadlines.heartbeat_s
        peer.lost = True
        peer.suspect_s = None
        # the loss of a host that reported an error first needs no explanation
        if not peer.failed and (not self._stopped_by or missed <= self._stop_s):
            self._losses.append(Loss(self.names[host], since, why))
        self._begin_stop(f"lost {self.names[host]}", external=False, now=now)
        self._try_to_decide(now)

    def disagrees(self, host: int, what: str, now: float) -> None:
        """The host runs another request than this one."""
        self._add_error(
            HostError(
                "ConfigError",
                100,
                f"hosts disagree: {what}",
                "start every host from the same request, image and code",
                "",
            ),
            now,
        )

    def heard(self, host: int, message: ToLeader, now: float) -> None:
        """A message of a host, the leader's own included."""
        peer = self._peers[host]
        if isinstance(message, StagedHost):
            peer.facts = message.facts
            self._give_facts()
        elif isinstance(message, Ready):
            peer.ready = message.digest
            self._ends_with_rank0 = self._ends_with_rank0 or message.ends_with_rank0
            self._give_go(now)
        elif isinstance(message, Registered):
            peer.registered = True
        elif isinstance(message, Stopping):
            self._begin_stop(f"{message.by} on {self.names[host]}", external=True, now=now)
        elif isinstance(message, Report):
            self._failures += message.failures
            if message.host_error is not None:
                peer.failed = True
                self._add_error(placed(message.host_error, self.names[host], len(self.names)), now)
            else:
                self._begin_stop("a rank failed", external=False, now=now)
        elif isinstance(message, HostEnded):
            self._host_ended(peer, message, now)

    def files_written(self) -> None:
        """The leader's own files and last lines are out: the others may leave."""
        self._orders.append(Order(None, Leave()))

    def not_reached(self, hosts: Sequence[int], now: float) -> None:
        """These hosts have not confirmed all messages. After a failure, the time that hosts have to
        end counts from when all awaited hosts know of it."""
        if self._decide_by is None or self._stopped_by:
            return
        if any(self._peers[host].awaited for host in hosts):
            self._decide_by = now + self._grace_s

    def tick(self, now: float) -> None:
        """Deadlines and progress lines; to be called at least every second."""
        if self.outcome is not None:
            return
        self._check_deadlines(now)
        if not self.running and not self._stopping and now >= self._progress_at:
            self._progress_at = now + PROGRESS_S
            self._say_who_is_missing()
        self._say_who_still_helps(now)
        if self._decide_by is not None and now >= self._decide_by:
            self._decide()

    def missing(self) -> list[str]:
        """Hosts that have not joined."""
        return [n for n, p in zip(self.names, self._peers, strict=True) if not p.joined]

    def _check_deadlines(self, now: float) -> None:
        if self._stopping:
            return
        absent = self.missing() if now >= self._join_by else []
        if absent:
            present = len(self.names) - len(absent)
            left = self._left.issuperset(absent)
            what = "left before the start and was not back" if left else "did not join"
            self._cluster_error(
                f"{listed(absent, NAMED)} {what} within {self._deadlines.join_s:g} s "
                f"({present} of {len(self.names)} present)",
                f"look at the log of {absent[0]}: it did not start, or its network cannot reach "
                "the leader's control port",
                now,
            )
        elif not self.running and now >= self._stage_by:
            late = [n for n, p in zip(self.names, self._peers, strict=True) if not p.ready]
            self._cluster_error(
                f"{listed(late, NAMED)} not ready within {self._deadlines.stage_s:g} s",
                "look at the log of that host, or raise MUSTER_STAGE_S",
                now,
            )
        elif self._start_by is not None and now >= self._start_by:
            self._start_by = None
            late = [n for n, p in zip(self.names, self._peers, strict=True) if not p.registered]
            if late:
                self._add_error(
                    HostError(
                        "LaunchError",
                        106,
                        f"{listed(late, NAMED)}: not all ranks started within "
                        f"{self._deadlines.start_s:g} s",
                        "look at the launcher's lines in the log of that host; where there are "
                        "none, the machine may be busy or its disk slow: raise MUSTER_START_S",
                        "",
                    ),
                    now,
                )

    def _cluster_error(self, message: str, fix: str, now: float) -> None:
        self._add_error(HostError("ClusterError", 102, message, fix, ""), now)

    def _add_error(self, host_error: HostError, now: float) -> None:
        # what follows from a failing rank, such as a launcher that gives up, is not the cause
        if not self._stopped_by and all(one.peer_lost for one in self._failures):
            self._errors.append(host_error)
        self._begin_stop(host_error.message, external=False, now=now)

    def _begin_stop(self, by: str, external: bool, now: float) -> None:
        if self._stopping or self.outcome is not None:
            return
        self._stopping = True
        self._stop_s = now
        limits = self._deadlines
        if external:
            self._stopped_by = by
            self._decide_by = now + limits.stop_verdict_s
        else:
            self._decide_by = now + self._grace_s
        self._orders.append(Order(None, Stop(external, by)))

    def _give_facts(self) -> None:
        if self._stopping or not self._all_staged.met():
            return
        facts = tuple(peer.facts for peer in self._peers if peer.facts is not None)
        self._orders += [Order(None, part) for part in facts_parts(facts)]

    def _give_go(self, now: float) -> None:
        if self._stopping or self.running or not self._all_ready.met():
            return
        digests = [peer.ready for peer in self._peers]
        if len(set(digests)) > 1:
            mine = digests[self._leader]
            other = next(i for i, digest in enumerate(digests) if digest != mine)
            leader = self.names[self._leader]
            self.disagrees(other, f"{self.names[other]} plans other processes than {leader}", now)
            return
        self.running = True
        self._start_by = now + self._deadlines.start_s
        self._orders.append(Order(None, Go()))

    def _host_ended(self, peer: _Peer, message: HostEnded, now: float) -> None:
        peer.ended = message
        if message.failures:
            known = {failure.rank for failure in self._failures}
            self._failures += [f for f in message.failures if f.rank not in known]
            self._begin_stop("a rank failed", external=False, now=now)
        if self._ends_with_rank0 and any(_leads_to_the_end(end) for end in message.ranks):
            self._wind_down()
        self._try_to_decide(now)

    def _wind_down(self) -> None:
        """Rank 0 has ended well: the other ranks of the world have no more work."""
        if self._stopping:
            return
        for host, peer in enumerate(self._peers):
            if peer.ended is None and host not in self._helpers:
                self._orders.append(Order(host, WindDown()))

    def _try_to_decide(self, now: float) -> None:
        if self.outcome is not None:
            return
        if not self._none_awaited.met():
            return
        if self._stopping or all(peer.ended for peer in self._peers):
            self._decide()

    def _decide(self) -> None:
        ends = [
            (self.names[i], end)
            for i, peer in enumerate(self._peers)
            if peer.ended is not None
            for end in peer.ended.ranks
        ]
        self.outcome = decide(
            self._failures,
            self._losses,
            self._errors,
            self._stopped_by,
            ends,
            self._deadlines.stop_grace_s,
            frozenset(self.names[host] for host in self._helpers),
        )
        self._orders.append(Order(None, Verdict(self.outcome)))

    def _say_who_is_missing(self) -> None:
        absent = self.missing()
        if absent:
            self.notes.append(f"waiting for {listed(absent, NAMED)} to join")
            return
        late = [n for n, p in zip(self.names, self._peers, strict=True) if not p.ready]
        self.notes.append(f"waiting for {listed(late, NAMED)} to be ready")

    def _say_who_still_helps(self, now: float) -> None:
        if not self.running or not self._helpers or self._stopping:
            return
        left = [i for i, peer in enumerate(self._peers) if peer.ended is None]
        if not left or not self._helpers.issuperset(left):
            return
        if self._helpers_at is None or now >= self._helpers_at:
            self._helpers_at = now + HELPERS_S
            names = listed((self.names[i] for i in left), NAMED)
            self.notes.append(f"all ranks have ended; {names} outside the distribution still runs")


def _leads_to_the_end(end: RankEnd) -> bool:
    return end.rank == 0 and not end.status and not end.stopped
