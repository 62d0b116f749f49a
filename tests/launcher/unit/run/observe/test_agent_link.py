"""What an agent writes is foreign: a question has one answer whatever comes."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping

import pytest

from muster.run.base.loop import Loop
from muster.run.child.shim_handle import ShimHandle
from muster.run.observe import agent_link
from muster.run.observe.agent_link import AgentLink, Ask
from muster.run.observe.dump import parse_dump
from muster.run.observe.looks import Answer, StackFrame

ALL = Ask(stacks=True, all_threads=True, calls=True)
HELLO = b'\n{"signal":0}\n'
CALL = {
    "library": "muster", "group": "world", "ranks": [0, 1], "op": "barrier", "number": 3,
    "shape": "", "running": True, "age_s": 1.5, "absent": [1],
}  # fmt: skip
GOOD = {
    "id": 1, "signal": 0, "step": 7, "rate": None, "calls": [CALL],
    "threads": [{"name": "MainThread", "main": True, "frames": [["a.py", 3, "f"]]}],
}  # fmt: skip
BAD = (
    b"", b"}", b"[]", b"null", b"1e999", b'"text"', b"\xff\xfe", b"[" * 100_000,
    b'{"id":1}', b'{"id":1,"signal":"9"}', b'{"id":"1","signal":0}', b'{"id":2,"signal":0}',
    json.dumps({**GOOD, "threads": 7}).encode(),
    json.dumps({**GOOD, "threads": [{"name": "x", "main": True, "frames": [["a.py"]]}]}).encode(),
    json.dumps({**GOOD, "calls": [{**CALL, "number": "x"}]}).encode(),
    json.dumps({**GOOD, "calls": [{"library": "torch"}]}).encode(),
    json.dumps({**GOOD, "step": "many"}).encode(),
    json.dumps({**GOOD, "step": float("inf")}).encode(),
    json.dumps({**GOOD, "rate": float("nan")}).encode(),
    json.dumps({**GOOD, "calls": [{**CALL, "age_s": float("inf")}]}).encode(),
    json.dumps({**GOOD, "calls": [{**CALL, "ranks": [float("inf")]}]}).encode(),
)  # fmt: skip


class Asked:
    """A link to one agent, which is this test."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.got: list[Mapping[int, Answer]] = []
        self.agent, ours = socket.socketpair()
        self.orders, sock = socket.socketpair()
        read, self.dump = os.pipe()
        self.handle = ShimHandle("rank:0", sock, 1, {}, lambda _one, _on: None)
        self.handle.take_agent(ours.detach(), read, self.loop.forget)
        self.handle.pid = os.getpid()
        self.link = AgentLink(self.loop, lambda rank: self.handle if rank == 0 else None)

    def ask(self, what: Ask = ALL, limit_s: float = 5.0) -> None:
        self.link.ask([0], what, limit_s, self.got.append)

    def answer(self) -> Answer:
        ends = self.loop.after(10, self.loop.stop)

        def look() -> None:
            if self.got:
                self.loop.stop()
            else:
                self.loop.after(0.005, look)

        look()
        self.loop.run()
        ends.cancel()
        (found,) = self.got
        self.got.clear()
        return found[0]

    def close(self) -> None:
        self.handle.drop_agent()
        self.handle.sock.close()
        self.agent.close()
        self.orders.close()
        os.close(self.dump)
        self.loop.close()


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.close()


def test_an_answer_comes_back_as_values(asked: Asked) -> None:
    asked.agent.sendall(HELLO)
    asked.ask()
    assert asked.agent.recv(100) == b"1 stacks threads calls\n"
    asked.agent.sendall(b"\n" + json.dumps(GOOD).encode() + b"\n")
    answer = asked.answer()
    assert (answer.how, answer.step, answer.rate) == ("agent", 7, None)
    assert answer.threads[0].frames == (StackFrame("a.py", 3, "f"),)
    assert (answer.calls[0].ranks, answer.calls[0].absent) == ((0, 1), (1,))


@pytest.mark.parametrize("line", BAD)
def test_what_is_no_answer_counts_as_silence_and_the_next_one_counts(
    asked: Asked, line: bytes
) -> None:
    asked.agent.sendall(HELLO)
    asked.ask(limit_s=0.1)
    asked.agent.sendall(line + b"\n")
    assert asked.answer().how == "silent"
    asked.ask()
    asked.agent.sendall(json.dumps({**GOOD, "id": 2}).encode() + b"\n")
    assert asked.answer().how == "agent"


def test_an_answer_that_is_late_is_not_taken_for_that_to_the_next_question(asked: Asked) -> None:
    asked.agent.sendall(HELLO)
    asked.ask(limit_s=0.06)
    assert asked.answer().how == "silent"
    asked.ask()
    asked.agent.sendall(json.dumps({**GOOD, "step": 1}).encode() + b"\n")
    asked.agent.sendall(json.dumps({**GOOD, "id": 2, "step": 2}).encode() + b"\n")
    assert asked.answer().step == 2


def test_an_answer_without_end_ends_what_is_heard_of_that_rank(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "ANSWER_BYTES", 1000)
    asked.agent.sendall(HELLO)
    asked.ask()
    asked.agent.sendall(b"x" * 2000)
    assert asked.answer().how == "none"
    asked.ask()
    assert asked.answer().how == "none"


@pytest.mark.parametrize("first", [b"", HELLO[:5]])
def test_one_that_has_not_said_that_it_is_there_is_not_waited_for(
    asked: Asked, first: bytes
) -> None:
    asked.agent.sendall(first)
    asked.ask(limit_s=60)
    assert asked.answer().how == "none"


def test_one_that_goes_meanwhile_is_not_waited_for(asked: Asked) -> None:
    asked.agent.sendall(HELLO)
    asked.ask(limit_s=60)
    asked.agent.close()
    assert asked.answer().how == "none"


def test_one_that_reads_nothing_keeps_nobody_waiting(asked: Asked) -> None:
    asked.agent.sendall(HELLO)
    limit = 20_000  # of questions, which fill the socket
    for _ in range(limit):
        asked.link.ask([0], ALL, 0.0, lambda _answers: None)
    asked.ask(limit_s=0.1)
    assert asked.answer().how == "silent"


def test_a_process_that_catches_no_signal_gets_none(asked: Asked) -> None:
    """It is this test's own process: the signal would end it."""
    asked.agent.sendall(HELLO.replace(b"0", str(signal.SIGRTMIN + 6).encode()))
    asked.ask(limit_s=0.8)
    assert asked.answer().how == "silent"
    asked.orders.setblocking(False)
    with pytest.raises(BlockingIOError):
        asked.orders.recv(100)


def test_nobody_asked_is_an_answer_too(asked: Asked) -> None:
    asked.link.ask([], ALL, 1.0, asked.got.append)
    asked.loop.after(0.05, asked.loop.stop)
    asked.loop.run()
    assert asked.got == [{}]


DUMP = """Thread 0x00007f1 (most recent call first):
  File "/x/threading.py", line 320 in wait
  File "/x/threading.py", line 1002 in _bootstrap

Thread 0x00007f2 (most recent call first):
  File "/y/muster/rank_bootstrap/agent.py", line 90 in _serve

Current thread 0x00007f3 (most recent call first):
  Garbage-collecting
  File "/a "b", line 2/train.py", line 41 in <lambda>
  File "train.py", line ??? in main
  ...
"""


def test_a_dump_is_read_with_the_main_thread_first() -> None:
    main, other = parse_dump(DUMP)
    assert (main.is_main, main.name, other.is_main) == (True, "MainThread", False)
    assert main.frames == (
        StackFrame("train.py", 0, "main"),
        StackFrame('/a "b", line 2/train.py', 41, "<lambda>"),
    )
    assert [frame.function for frame in other.frames] == ["_bootstrap", "wait"]


def test_of_a_dump_that_was_cut_off_nobody_is_taken_for_the_main_thread() -> None:
    assert not any(thread.is_main for thread in parse_dump(DUMP + "...\n"))


def test_names_of_python_3_14_are_read() -> None:
    text = 'Thread 0x7f [a [b] c] (most recent call first):\n  File "x", line 1 in f\n'
    assert parse_dump(text)[0].name == "a [b] c"


@pytest.mark.parametrize(
    "text", ["", "\n\n", '  File "x", line 1 in f', "noise\x00\n...", "Thread"]
)
def test_a_dump_of_anything_else_is_empty(text: str) -> None:
    assert parse_dump(text) == ()
