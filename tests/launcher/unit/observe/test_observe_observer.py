"""The observer of one host: what it answers, what it drops, and that its defects end it alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from muster.plan.launchplan import Command, LaunchPlan, RankSlot
from muster.run.base.loop import Loop
from muster.run.base.record import Recorder
from muster.run.channel.messages import HostError, Query, Question, Reply
from muster.run.observe import codec, observer
from muster.run.observe.control import Inquiry
from muster.run.observe.guard import GuardedLoop
from muster.run.observe.observer import HostPlace, Observer
from muster.run.observe.query import to_json
from muster.types.deadlines import Deadlines
from tests.launcher.support.looks import look


class Host:
    """One host whose observer has no ranks of its own; what it sends is kept."""

    def __init__(self, me: int, hosts: int = 2) -> None:
        self.loop = Loop()
        self.sent: list[tuple[int, Question]] = []
        self.lines: list[str] = []
        self.stopped: list[str] = []
        self.errors: list[HostError] = []
        self.observer = Observer(
            self.loop,
            HostPlace(me, 0, [f"algo-{i + 1}" for i in range(hosts)]),
            make_plan(hosts),
            list,
            Deadlines(),
            Recorder("algo-1", "", 1, str),
            self.log,
            str,
            self,
        )

    def log(self, _component: str, text: str, /, level: str = "INFO", **_facts: object) -> None:
        self.lines.append(text)

    def ask_host(self, host: int, question: Question) -> None:
        self.sent.append((host, question))

    def stop_job(self, by: str) -> None:
        self.stopped.append(by)

    def job_hangs(self, error: HostError) -> None:
        self.errors.append(error)

    def is_at_work(self) -> bool:
        return True

    def run(self, until: Callable[[], object], limit_s: float = 5.0) -> None:
        """The loop, until the condition holds."""
        end = time.monotonic() + limit_s

        def look_again() -> None:
            if until() or time.monotonic() > end:
                self.loop.stop()
            else:
                self.loop.after(0.005, look_again)

        look_again()
        self.loop.run()
        assert until(), (self.sent, self.lines)

    def ask(self, inquiry: Inquiry) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        self.observer.request(inquiry, answers.append)
        return answers


def make_plan(hosts: int) -> LaunchPlan:
    return LaunchPlan(
        option="none",
        world_size=hosts,
        ranks=tuple(RankSlot(rank, rank, 0) for rank in range(hosts)),
        leader=0,
        master_addr="127.0.0.1",
        ports={},
        script=Command(("train.py",), {}, "/"),
        script_is_python=True,
        agreed=(),
    )


@pytest.fixture
def made() -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(me: int) -> Host:
        hosts.append(Host(me))
        return hosts[-1]

    yield make
    for host in hosts:
        host.observer.close()
        host.loop.close()


def reply_to(query: Question, looks: Sequence[Any]) -> list[Reply]:
    parts = codec.pack(to_json(list(looks), {}, "roll"))
    return [Reply(query.number, n, len(parts), text) for n, text in enumerate(parts)]


def test_the_leader_asks_every_host_and_answers(made: Callable[..., Host]) -> None:
    leader = made(0)
    answers = leader.ask(Inquiry("stacks"))
    leader.run(lambda: leader.sent)
    ((host, query),) = leader.sent
    assert isinstance(query, Query)
    assert (host, query.what) == (1, "roll")
    for reply in reply_to(query, [look(1, host="algo-2", state="T")]):
        leader.observer.heard(1, reply)
    leader.run(lambda: answers)
    assert answers[0]["verdict"]["kind"] == "stopped"
    assert [one["rank"] for one in answers[0]["stacks"]] == [1]


def test_a_host_that_does_not_answer_is_named(
    made: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.run.observe.rounds.HOST_S", 0.1)
    leader = made(0)
    answers = leader.ask(Inquiry("state"))
    leader.run(lambda: answers)
    assert answers[0]["silent"] == ["algo-2"]


def test_a_follower_asks_the_leader_and_passes_its_answer_on(made: Callable[..., Host]) -> None:
    leader, follower = made(0), made(1)
    answers = follower.ask(Inquiry("state"))
    ((to, query),) = follower.sent
    assert to == 0
    leader.observer.heard(1, query)
    leader.run(lambda: leader.sent)
    for reply in reply_to(leader.sent[0][1], [look(1, host="algo-2")]):
        leader.observer.heard(1, reply)
    leader.run(lambda: len(leader.sent) > 1)
    for host, reply in leader.sent[1:]:
        assert host == 1
        follower.observer.heard(0, reply)
    assert [row["rank"] for row in answers[0]["ranks"]] == [1]


@pytest.mark.promise("S21")
def test_a_host_that_asks_without_end_has_few_questions_open(made: Callable[..., Host]) -> None:
    leader = made(0)
    for number in range(1000):
        leader.observer.heard(1, Query(number, "job-state"))
        leader.observer.heard(1, Reply(9999 + number, 0, 1, "eJw="))  # to nothing asked
    assert len(leader.sent) == observer.PENDING


@pytest.mark.promise("S21")
def test_a_follower_asks_nobody_for_another_one(made: Callable[..., Host]) -> None:
    follower = made(1)
    for what in ("job-state", "stall", "anything"):
        follower.observer.heard(0, Query(1, what))
    for number in (0, 1, 7):
        follower.observer.heard(0, Reply(number, 0, 1, "eJw="))
    assert not follower.sent


def test_after_the_end_nothing_is_asked_or_answered(made: Callable[..., Host]) -> None:
    leader = made(0)
    leader.observer.close()
    leader.observer.heard(1, Query(1, "job-state"))
    assert not leader.sent


def test_a_stop_is_passed_on(made: Callable[..., Host]) -> None:
    follower = made(1)
    assert follower.ask(Inquiry("stop")) == [{"stopping": True}]
    assert follower.stopped == ["muster stop"]


def test_a_defect_is_said_once_and_ends_observing_alone() -> None:
    loop, errors, calls = Loop(), [], []

    def broken() -> None:
        raise ValueError("x")

    guarded = GuardedLoop(loop, errors.append)
    guarded.post(broken)
    guarded.post(broken)
    guarded.after(0, lambda: calls.append("after"))
    loop.after(0.02, loop.stop)
    loop.run()
    loop.close()
    assert [type(error) for error in errors] == [ValueError]
    assert not calls
