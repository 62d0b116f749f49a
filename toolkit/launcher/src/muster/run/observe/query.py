"""A question to the hosts of a job, and their answers. Pure: messages and the time go in.

To a host: `state` (processes, steps), `calls` (and collective calls), `roll` (and one stack of each
kind), `stacks` (all of the main threads), `threads` (of all threads), `pace` (when ranks came to
their last calls, and what held them up), `probe` (as `stacks`, of ranks that are well and are to
stay so: without a signal). To the leader, of a host that was asked for the whole job: the requests
of `run.observe.control`, and `stall`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from muster.run.channel.messages import Reply, WireError
from muster.run.observe import codec
from muster.run.observe.looks import RankLook
from muster.run.observe.wording import spot

STATE, CALLS, ROLL, STACKS, THREADS, PACE, PROBE = OF_HOSTS = (
    "state", "calls", "roll", "stacks", "threads", "pace", "probe",
)  # fmt: skip
KINDS_SHOWN = 64  # whose full stacks are asked for
HOST_BYTES = 2 << 20  # packed, of one host's answer to one question
ALL_BYTES = 256 << 20  # of all hosts together


class Parts:
    """An answer that comes in parts, in their order."""

    def __init__(self, most_bytes: int = HOST_BYTES) -> None:
        self._most = most_bytes
        self._texts: list[str] = []
        self._parts = 0
        self.bytes = 0

    def take(self, reply: Reply) -> bool:
        """Adds one; whether it was the last. Raises WireError for one that does not follow."""
        if reply.part != len(self._texts) or (self._parts and reply.parts != self._parts):
            raise WireError("a part of an answer out of its order")
        self._parts = reply.parts
        self._texts.append(reply.text)
        self.bytes += len(reply.text)
        if self.bytes > self._most:
            raise WireError("an answer that is too large")
        return len(self._texts) == self._parts

    def value(self) -> Any:
        """The answer, once it is whole. Raises WireError."""
        return codec.unpack(self._texts)


class Collector:
    """The answers to one question. A host that answers wrongly counts as one that did not."""

    def __init__(
        self, number: int, hosts: Mapping[int, tuple[str, Collection[int]]], world: int, by_s: float
    ) -> None:
        """`hosts`: index -> name and the ranks that it is asked about. `by_s`: when each host must
        have answered."""
        self.number = number
        self.looks: list[RankLook] = []
        self.idle_s: dict[int, float] = {}  # rank that runs -> since when it has done nothing
        self._hosts = dict(hosts)
        self._world = world
        self._members: dict[str, tuple[int, ...]] = {}
        self._parts: dict[int, Parts] = {host: Parts() for host in hosts}
        self._by_s = dict.fromkeys(hosts, by_s)
        self._bytes = 0

    @property
    def done(self) -> bool:
        return not self._parts

    def take(self, host: int, reply: Reply) -> None:
        """One part; what was not asked for is dropped."""
        parts = self._parts.get(host)
        if reply.number != self.number or parts is None:
            return
        try:
            self._bytes += len(reply.text)
            if self._bytes > ALL_BYTES:
                raise WireError("too much")
            if not parts.take(reply):
                return
            name, ranks = self._hosts[host]
            idle, made = _pair(parts.value())
            looks = codec.looks_from_json(made, name, ranks, self._members, self._world)
            self.add(host, looks, codec.numbers_from_json(idle, ranks))
        except WireError:
            self._parts.pop(host, None)

    def add(self, host: int, looks: Iterable[RankLook], idle_s: Mapping[int, float]) -> None:
        """The whole answer of a host."""
        if self._parts.pop(host, None) is not None:
            self.looks += looks
            self.idle_s.update(idle_s)
            self._hosts.pop(host)

    def expire(self, now: float) -> None:
        """Gives up the hosts whose time is over."""
        for host in [host for host in self._parts if now >= self._by_s[host]]:
            del self._parts[host]

    def silent(self) -> dict[int, str]:
        """The ranks of hosts that did not answer: rank -> its host."""
        return {rank: name for name, ranks in self._hosts.values() for rank in ranks}


def to_json(looks: list[RankLook], idle_s: Mapping[int, float], what: str) -> object:
    """A host's answer. `idle_s`: rank -> since when it has done nothing."""
    idle = [[rank, round(time_s, 2)] for rank, time_s in idle_s.items()]
    return [idle, codec.looks_to_json(looks, all_threads=what == THREADS)]


def _pair(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise WireError("an answer of another kind")
    return value[0], value[1]


def one_of_each_kind(looks: Iterable[RankLook]) -> list[int]:
    """The first rank of each kind of stack, the rarest kinds first, at most `KINDS_SHOWN`."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for look in looks:
        threads = tuple(spot(one) for one in look.answer.threads if one.is_main)
        kinds.setdefault((look.answer.how, threads), []).append(look.rank)
    found = sorted(kinds.values(), key=len)[:KINDS_SHOWN]
    return sorted(min(ranks) for ranks in found)
