"""What sees into the ranks of this host, and on the leader into all: one object, made when it is
needed first. It reports, and ends a job only where `MUSTER_HANG_S` asks for that.

Whatever goes wrong in here ends observing, is said once, and changes no outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from muster.plan.launchplan import LaunchPlan
from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError, Query, Question, Reply, WireError
from muster.run.child.rank import Rank
from muster.run.observe import answers, codec, control
from muster.run.observe.control import Answered, Control, Inquiry, refusal
from muster.run.observe.guard import GuardedLoop
from muster.run.observe.local_looks import LocalLooks
from muster.run.observe.looks import RankLook
from muster.run.observe.query import (
    OF_HOSTS,
    PACE,
    ROLL,
    STATE,
    THREADS,
    Collector,
    Parts,
    one_of_each_kind,
    to_json,
)
from muster.run.observe.rounds import Rounds
from muster.run.observe.sampler import Sampler
from muster.run.observe.stragglers import Stragglers
from muster.run.observe.watch import StallWatch
from muster.types.deadlines import Deadlines
from muster.types.shown import parse_ranks
from muster.types.steps import Log
from muster.types.values import NamedTuple

STALL = "stall"  # of a follower to the leader: ranks of mine wait for long
OF_JOB = {"job-state": STATE, "job-stacks": "stacks", "job-threads": THREADS}
PENDING = 8  # questions of one host to the leader that are not answered yet


class HostPlace(NamedTuple):
    """This host in its job: indices into `names`."""

    me: int
    leader: int
    names: Sequence[str]

    @property
    def leads(self) -> bool:
        return self.me == self.leader


class ObserverHost(Protocol):
    """What the observer may ask of its supervisor, on the loop's thread."""

    def ask_host(self, host: int, question: Question) -> None:
        """Sends to another host; from a follower always to the leader."""
        ...

    def stop_job(self, by: str) -> None:
        """As a stop signal would."""
        ...

    def job_hangs(self, error: HostError) -> None: ...

    def is_at_work(self) -> bool:
        """Whether all ranks of this host have started, and nothing ends the job yet."""
        ...


class Observer:
    """Sees from the moment it is made until `close`."""

    def __init__(
        self,
        loop: Loop,
        place: HostPlace,
        plan: LaunchPlan,
        ranks: Callable[[], Sequence[Rank]],
        deadlines: Deadlines,
        recorder: Recorder,
        log: Log,
        mask: Callable[[str], str],
        owner: ObserverHost,
        throttled_s: Callable[[], float | None] = lambda: None,
        clock: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        """`clock()`: from this host's monotonic clock to the leader's, and what that may be off
        by; seconds."""
        self._loop = GuardedLoop(loop, self._broke)
        self._place = place
        self._log = log
        self._mask = lru_cache(4096)(mask)
        self._owner = owner
        self._clock = clock
        self._closed = False
        self._world = plan.world_size
        self._looks = LocalLooks(self._loop, place.names[place.me], ranks)
        world = [slot for slot in plan.ranks if slot.rank < plan.world_size]
        self.sampler = Sampler(self._looks.subjects, recorder.event, throttled_s)
        self._rounds = Rounds(
            self._loop, place.me, place.names, world, owner.ask_host, self._look_here
        )
        self._asked: dict[int, int] = {}  # host -> its open questions to this leader
        self._number = 0
        self._waiting: dict[int, tuple[Parts, Answered]] = {}  # a follower's, for the leader
        self._watch = StallWatch(
            self._loop, self._looks, self._rounds, recorder, log, owner, deadlines,
            place.leads, lambda: owner.ask_host(place.leader, Query(0, STALL)),
        )  # fmt: skip
        self._stragglers = Stragglers(
            self._loop, self._rounds, recorder, log, owner,
            deadlines.stragglers_s if place.leads and self._world > 1 else 0.0,
        )  # fmt: skip
        self._control = (
            Control(self._loop, recorder.folder, self.request, self._warn)
            if recorder.folder
            else None
        )
        self._loop.guard(self._begin)

    def close(self) -> None:
        """Nothing is asked, answered or said any more."""
        if not self._closed:
            self._closed = True
            if self._control is not None:
                self._control.end()
            self._looks.close()
            self.sampler.end()
            self._loop.end()

    def heard(self, host: int, question: Question) -> None:
        """A question or an answer of another host; never raises."""
        self._loop.guard(lambda: self._heard(host, question))

    # requests of people

    def request(self, request: Inquiry, done: Answered) -> None:
        """A request at this host's socket. `done` is called once."""
        if request.do == control.STOP:
            self._owner.stop_job("muster stop")
            done({"stopping": True})
            return
        ranks: tuple[int, ...] = ()
        if request.ranks:
            named = parse_ranks(request.ranks)
            ranks = tuple(rank for rank in range(self._world) if named.has(rank, self._world))
            if not ranks:
                what = f"no rank is meant by {request.ranks[:60]}"
                done(refusal(what, f"this job has ranks 0 to {self._world - 1}"))
                return
        what = "job-state" if request.do == control.STATE else "job-stacks"
        if request.all_threads and what == "job-stacks":
            what = "job-threads"
        if self._place.leads:
            self._answer(what, ranks, done)
            return
        self._number += 1
        number = self._number
        self._waiting[number] = Parts(codec.ANSWER_BYTES), done
        self._loop.after(control.REQUEST_S, lambda: self._waiting.pop(number, None) and None)
        self._owner.ask_host(self._place.leader, Query(number, what, ranks))

    def _answer(self, what: str, ranks: Sequence[int], done: Answered) -> None:
        """On the leader: asks all hosts."""
        if OF_JOB[what] == STATE:
            self._rounds.ask(
                STATE,
                ranks,
                lambda found: done(
                    answers.state_answer(found.looks, found.silent(), self._stragglers.pace)
                ),
            )
            return

        def called(found: Collector) -> None:
            verdict = answers.verdict_of(found)
            shown = set(ranks or one_of_each_kind(found.looks))

            def answer(more: Sequence[RankLook]) -> None:
                done(answers.stacks_answer(verdict, found.looks, more, found.silent()))

            if OF_JOB[what] == THREADS:
                self._rounds.ask(THREADS, shown, lambda more: answer(more.looks))
            else:
                answer([look for look in found.looks if look.rank in shown])

        self._rounds.ask(ROLL, (), called)

    # questions of hosts

    def _heard(self, host: int, question: Question) -> None:
        if isinstance(question, Query):
            self._queried(host, question)
        elif self._place.leads:
            self._rounds.replied(host, question)
        else:
            self._answered(question)

    def _queried(self, host: int, query: Query) -> None:
        if not self._place.leads:
            if query.what in OF_HOSTS:
                self._look_here(
                    query.what,
                    query.ranks,
                    lambda looks, idle_s: self._reply(
                        host, query, to_json(looks, idle_s, query.what)
                    ),
                )
            return
        if query.what == STALL:
            self._watch.told()
        elif query.what in OF_JOB and self._asked.get(host, 0) < PENDING:
            self._asked[host] = self._asked.get(host, 0) + 1
            self._answer(query.what, query.ranks, lambda value: self._done(host, query, value))

    def _done(self, host: int, query: Query, value: dict[str, Any]) -> None:
        self._asked[host] -= 1
        self._reply(host, query, value)

    def _reply(self, host: int, query: Query, value: object) -> None:
        if self._closed:
            return
        try:
            parts = codec.pack(value)
        except ValueError:
            parts = codec.pack(refusal("the answer is too large", "name fewer ranks"))
        for number, text in enumerate(parts):
            self._owner.ask_host(host, Reply(query.number, number, len(parts), text))

    def _answered(self, reply: Reply) -> None:
        """A part of the leader's answer to a question of this host's socket."""
        found = self._waiting.get(reply.number)
        if found is None:
            return
        parts, done = found
        try:
            if not parts.take(reply):
                return
            value = parts.value()
        except WireError as error:
            value = refusal(f"the leader sent {error}", "ask on the leader's host")
        del self._waiting[reply.number]
        done(value if isinstance(value, dict) else refusal("an answer of another kind", ""))

    # this host

    def _begin(self) -> None:
        if self._control is not None:
            try:
                self._control.begin()
            except RuntimeError as error:  # no thread can be had
                self._warn(f"there is no control socket: {error}")
        self._watch.begin()
        self._stragglers.begin()
        if self._control is not None:  # else there is no record for samples
            self.sampler.begin()

    def _look_here(
        self,
        what: str,
        ranks: Collection[int],
        done: Callable[[list[RankLook], Mapping[int, float]], None],
    ) -> None:
        def looked(looks: list[RankLook]) -> None:
            if what == PACE:
                looks = [self._paced(look) for look in looks]
            done([self._masked(look) for look in looks], self._looks.idle_s)

        self._looks.look(what, ranks, looked)

    def _paced(self, look: RankLook) -> RankLook:
        """With what held it up, and the times at which it came to calls by the leader's clock."""
        came, (offset_s, unsure_s) = look.answer.arrivals, self._clock()
        if came is not None:
            calls = tuple((number, at_s + offset_s) for number, at_s in came.calls)
            came = came._replace(calls=calls, unsure_s=unsure_s)
            look = look._replace(answer=look.answer._replace(arrivals=came))
        return look._replace(usage=self.sampler.usage(look.rank))

    def _masked(self, look: RankLook) -> RankLook:
        """Without the secrets that this host knows: frames between hosts are not encrypted."""
        mask = self._mask
        threads = tuple(
            one._replace(
                name=mask(one.name),
                frames=tuple(
                    frame._replace(file=mask(frame.file), function=mask(frame.function))
                    for frame in one.frames
                ),
            )
            for one in look.answer.threads
        )
        process = look.process._replace(waits_for=mask(look.process.waits_for))
        return look._replace(answer=look.answer._replace(threads=threads), process=process)

    def _warn(self, text: str) -> None:
        self._log("observe", text, level="WARNING")

    def _broke(self, error: Exception) -> None:
        """A defect of what observes: said once, and the job goes on without it."""
        what = f"{type(error).__name__}: {error}"
        self._warn(f"a defect of muster ended what looks into ranks; the job goes on: {what[:300]}")
        try:
            self.close()
        except Exception:
            pass  # said already
