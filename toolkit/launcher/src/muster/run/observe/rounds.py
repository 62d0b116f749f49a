"""The leader's questions to all hosts, itself included: each gets one answer, or its time is
over."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from muster.plan.launchplan import RankSlot
from muster.run.base.loop import Loop
from muster.run.channel.messages import MOST_RANKS_ASKED, Query, Reply
from muster.run.observe.local_looks import LOOK_S
from muster.run.observe.looks import RankLook
from muster.run.observe.query import Collector

HOST_S = LOOK_S + 0.5  # for a host's answer to come: two rounds fit a request


class Rounds:
    """`send(host, query)` asks another host; `look` this one, whose index is `me`."""

    def __init__(
        self,
        loop: Loop,
        me: int,
        names: Sequence[str],
        ranks: Sequence[RankSlot],
        send: Callable[[int, Query], None],
        look: Callable[
            [str, Collection[int], Callable[[list[RankLook], Mapping[int, float]], None]], None
        ],
    ) -> None:
        self._loop = loop
        self._me = me
        self._names = names
        self._of_host: dict[int, list[int]] = {}
        for slot in ranks:
            self._of_host.setdefault(slot.host, []).append(slot.rank)
        self._host_of = {slot.rank: slot.host for slot in ranks}
        self._world = len(ranks)
        self._send = send
        self._look = look
        self._number = 0
        self._open: dict[int, tuple[Collector, Callable[[Collector], None]]] = {}

    def ask(self, what: str, ranks: Collection[int], done: Callable[[Collector], None]) -> None:
        """Asks about these ranks, or about all, and calls `done` once with what has come."""
        self._number += 1
        number = self._number
        asked = self._of_host if not ranks else self._split(ranks)
        hosts = {host: (self._names[host], some) for host, some in asked.items()}
        collector = Collector(number, hosts, self._world, time.monotonic() + HOST_S)
        self._open[number] = collector, done
        self._loop.after(HOST_S, lambda: self._expire(number))
        for host, some in asked.items():
            if host != self._me:
                named = tuple(some) if ranks and len(some) <= MOST_RANKS_ASKED else ()
                self._send(host, Query(number, what, named))
        if self._me in asked:
            some = asked[self._me]
            self._look(what, some, lambda looks, idle_s: self._own(number, looks, idle_s))

    def replied(self, host: int, reply: Reply) -> None:
        """A part of an answer; one to no open question is dropped."""
        found = self._open.get(reply.number)
        if found is not None:
            found[0].take(host, reply)
            self._try(reply.number)

    def _own(self, number: int, looks: list[RankLook], idle_s: Mapping[int, float]) -> None:
        found = self._open.get(number)
        if found is not None:
            found[0].add(self._me, looks, idle_s)
            self._try(number)

    def _expire(self, number: int) -> None:
        found = self._open.get(number)
        if found is not None:
            found[0].expire(float("inf"))
            self._try(number)

    def _try(self, number: int) -> None:
        collector, done = self._open[number]
        if collector.done:
            del self._open[number]
            done(collector)

    def _split(self, ranks: Collection[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for rank in sorted(ranks):
            if rank in self._host_of:
                found.setdefault(self._host_of[rank], []).append(rank)
        return found
