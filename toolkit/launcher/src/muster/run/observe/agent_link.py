"""Asks the agents in the ranks of this host where they are. Never waits: all on the loop's thread.

A rank whose agent is silent for SIGNAL_AFTER_S, because C code keeps its interpreter, gets the
signal for which faulthandler writes its stacks; only where the kernel says that the process catches
it, for otherwise it would end it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from muster.run.base.loop import Loop
from muster.run.child.shim_handle import ShimHandle, state_of
from muster.run.observe.dump import parse_dump
from muster.run.observe.looks import Answer, Arrivals, Call, StackFrame, ThreadStack
from muster.types.files import read_text
from muster.types.values import NamedTuple

ANSWER_BYTES = 1 << 20
READ_BYTES = 1 << 16
SIGNAL_AFTER_S = 0.5
TICK_S = 0.05
QUIET_TICKS = 2  # a signal handler that has begun to write is through after so many without a word
_NONE, _SILENT = Answer("none"), Answer("silent")


class Ask(NamedTuple):
    """What is asked of a rank. `all_threads`: beside the main thread's stack. `waits`: calls as
    cheaply as can be, those alone that may have run for long. `by_signal`: whether stacks are worth
    a signal, whose handler reads frames that may be running."""

    stacks: bool
    all_threads: bool
    calls: bool
    arrivals: bool = False
    waits: bool = False
    by_signal: bool = True

    @property
    def words(self) -> str:
        return " ".join(name for name, asked in zip(_WORDS, self, strict=False) if asked)


_WORDS = ("stacks", "threads", "calls", "arrivals", "waits")  # as the fields come


class AgentLink:
    """The agents of a host's ranks. `handle_of(rank)`: its process, None where there is none."""

    def __init__(self, loop: Loop, handle_of: Callable[[int], ShimHandle | None]) -> None:
        self._loop = loop
        self._handle_of = handle_of
        self._agents: dict[int, _Agent] = {}

    def ask(
        self,
        ranks: Collection[int],
        what: Ask,
        limit_s: float,
        done: Callable[[Mapping[int, Answer]], None],
    ) -> None:
        """Calls `done` once, later, with an answer for every rank: `none` for one that has no agent
        or ends meanwhile, `silent` for one that did not answer within `limit_s`."""
        round_ = _Round(dict.fromkeys(ranks), done)
        for rank in round_.answers:
            agent = self._agent_of(rank)
            if agent is None:
                self._loop.post(partial(round_.take, rank, _NONE))
            else:
                agent.ask(what, limit_s, partial(round_.take, rank))
        if not round_.answers:
            self._loop.post(lambda: done({}))

    def moved_bytes(self, rank: int) -> int:
        """What its agent has read and written so far, as far as it was heard; from any thread."""
        agent = self._agents.get(rank)
        return agent.moved if agent is not None else 0

    def _agent_of(self, rank: int) -> _Agent | None:
        handle = self._handle_of(rank)
        if handle is None or handle.agent < 0 or not handle.pid or handle.ended:
            return None
        known = self._agents.get(rank)
        if known is None or known.handle is not handle:
            known = self._agents[rank] = _Agent(self._loop, handle)
        return known if known.is_there() else None


class _Round:
    """The answers to one `ask`, until all are there."""

    def __init__(
        self, answers: dict[int, Answer | None], done: Callable[[Mapping[int, Answer]], None]
    ) -> None:
        self.answers = answers
        self._left = len(answers)
        self._done = done

    def take(self, rank: int, answer: Answer) -> None:
        self.answers[rank] = answer
        self._left -= 1
        if not self._left:
            self._done({rank: answer or _SILENT for rank, answer in self.answers.items()})


class _Question(NamedTuple):
    """One question to several ranks, until all have answered or its time is over."""

    what: Ask
    signal_at_s: float
    ends_at_s: float
    take: Callable[[Answer], None]


class _Agent:
    """One rank's agent; it is watched only while a question to it is open."""

    def __init__(self, loop: Loop, handle: ShimHandle) -> None:
        self.handle = handle
        self.moved = 0  # bytes, to and from it
        self._loop = loop
        self._open: dict[int, _Question] = {}
        self._count = 0
        self._inbox = bytearray()
        self._signal = (
            -1
        )  # its faulthandler's; 0: it has none; -1: it has not said that it is there
        self._dump = bytearray()
        self._quiet = -1  # ticks without more of a dump that was asked for; -1: none was
        self._gone = False
        self._ticks = False

    def is_there(self) -> bool:
        """Whether it has said so; a rank that is another program, or just starts, has not."""
        if self._signal < 0 and not self._gone:
            self._read()
        return self._signal >= 0 and not self._gone

    def ask(self, what: Ask, limit_s: float, take: Callable[[Answer], None]) -> None:
        now = time.monotonic()
        if not self._open:
            self._loop.watch(self.handle.agent, lambda _events: self._hear())
        if not self._ticks:
            self._ticks = True
            self._loop.after(TICK_S, self._tick)
        self._count += 1
        ends_s = now + limit_s
        question = _Question(what, min(now + SIGNAL_AFTER_S, ends_s), ends_s, take)
        self._open[self._count] = question
        try:
            self.moved += os.write(self.handle.agent, f"{self._count} {what.words}\n".encode())
        except OSError:
            pass  # it has let very many unanswered, or is gone: both show

    def _hear(self) -> None:
        self._read()
        if self._gone:
            self._close_all(_NONE)

    def _read(self) -> None:
        """Takes in what has come."""
        data = _read(self.handle.agent)
        if data is None:
            return
        self.moved += len(data)
        self._gone = not data
        self._inbox += data
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = rest
        for line in lines:
            if line:
                self._take(bytes(line))
        if len(self._inbox) > ANSWER_BYTES:
            self._gone = True  # no agent writes that: nothing it says counts any more

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            number, signal = said.get("id", 0), said["signal"]
            answer = answer_of(said)
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return
        if type(number) is not int or type(signal) is not int:
            return
        self._signal = signal
        question = self._open.pop(number, None)
        self._settle(question, answer)

    def _settle(self, question: _Question | None, answer: Answer) -> None:
        if question is not None:
            if not self._open and self.handle.agent >= 0:
                self._loop.forget(self.handle.agent)
            question.take(answer)

    def _close_all(self, answer: Answer) -> None:
        for number in list(self._open):
            self._settle(self._open.pop(number, None), answer)

    def _tick(self) -> None:
        """Deadlines, and the signal for those that are silent."""
        handle, now = self.handle, time.monotonic()
        self._ticks = False
        if handle.ended or handle.agent < 0 or self._gone:
            self._close_all(_NONE)
            return
        if self._quiet >= 0:
            self._hear_dump()
        elif any(
            one.what.stacks and one.what.by_signal and now >= one.signal_at_s
            for one in self._open.values()
        ):
            self._send_signal()
        for number, question in list(self._open.items()):
            if now >= question.ends_at_s:
                self._settle(self._open.pop(number, None), _SILENT)
        if self._open and not self._ticks:
            self._ticks = True
            self._loop.after(TICK_S, self._tick)

    def _send_signal(self) -> None:
        pid, number = self.handle.pid, self._signal
        if number <= 0 or state_of(pid) not in ("R", "S", "D") or not catches(pid, number):
            return
        while data := _read(self.handle.agent_dump):
            self.moved += len(data)  # of an earlier one that came too late
        if data is not None:
            return  # the script has closed it, and may have a file of its own under that number
        self._dump.clear()
        self._quiet = 0
        with suppress(OSError):  # the handler does not wait for room, so it should have enough
            fcntl.fcntl(self.handle.agent_dump, fcntl.F_SETPIPE_SZ, ANSWER_BYTES)
        self.handle.signal(number)

    def _hear_dump(self) -> None:
        had = len(self._dump)
        while len(self._dump) < ANSWER_BYTES and (data := _read(self.handle.agent_dump)):
            self._dump += data
            self.moved += len(data)
        self._quiet = 0 if len(self._dump) > had else self._quiet + bool(had)
        if self._quiet < QUIET_TICKS:
            return
        self._quiet = -1
        answer = Answer("signal", parse_dump(self._dump.decode("utf-8", "replace")))
        for number in [number for number, one in self._open.items() if one.what.stacks]:
            self._settle(self._open.pop(number, None), answer)


def answer_of(said: Mapping[str, Any]) -> Answer:
    """An agent's answer as a value. Raises ArithmeticError, KeyError, TypeError or ValueError for
    anything else."""
    step, rate = said.get("step"), said.get("rate")
    threads = tuple(
        ThreadStack(
            _text(thread["name"]),
            thread["main"] is True,
            tuple(
                StackFrame(_text(file), int(line), _text(function))
                for file, line, function in thread["frames"]
            ),
        )
        for thread in said.get("threads", ())
    )
    calls = tuple(
        Call(
            library=_text(call["library"]),
            group=_text(call["group"]),
            ranks=tuple(map(int, call["ranks"])),
            op=_text(call["op"]),
            number=int(call["number"]),
            shape=_text(call["shape"]),
            running=call["running"] is True,
            age_s=_finite(call["age_s"]),
            absent=tuple(map(int, call["absent"])),
        )
        for call in said.get("calls", ())
    )
    return Answer(
        "agent",
        threads,
        calls,
        None if step is None else int(step),
        None if rate is None else _finite(rate),
        _arrivals(said.get("arrivals")),
    )


def _arrivals(said: Any) -> Arrivals | None:
    if said is None:
        return None
    calls = tuple((int(number), _finite(at_s)) for number, at_s in said["calls"])
    ranks = tuple(map(int, said["ranks"]))
    return Arrivals(_text(said["library"]), _text(said["group"]), ranks, calls)


def _text(value: object) -> str:
    """Names of files may hold bytes that are no text, which nothing could print."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value.encode("utf-8", "replace").decode()


def _finite(value: object) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; otherwise it would end it."""
    for line in read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _read(fd: int) -> bytes | None:
    """What is there; None where nothing is, b"" at the end."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
