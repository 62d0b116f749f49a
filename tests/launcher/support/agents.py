"""Ranks below shims, with a loop that asks their agents, in the process of the test."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from muster.run.base.logs import Pump, Stream
from muster.run.base.loop import Loop
from muster.run.child.child import Child
from muster.run.child.shim_handle import ShimHandle
from muster.run.child.shims import ShimPool
from muster.run.observe.agent_link import AgentLink, Ask
from muster.run.observe.looks import Answer, Call, ThreadStack
from tests.support.waiting import within

LIMIT_S = 20.0
POLL_S = 0.01
EVERYTHING = Ask(stacks=True, all_threads=True, calls=True)


class _Rank(Child):
    has_agent = True


class _Launcher(Child):
    pass


class Ranks:
    """`start` as many as a test needs; `end` them all. Rank N prints to `output(N)`."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop()
        self.link = AgentLink(self.loop, self.handle)
        self._pump = Pump()
        self._pool = ShimPool(self.loop)
        self._children: dict[str, Child] = {}
        self._argv: dict[str, tuple[list[str], dict[str, str]]] = {}
        self.folder = folder
        self._pool.serve(self, _changed)

    def start(
        self,
        script: str,
        rank: int = 0,
        *,
        environ: Mapping[str, str] | None = None,
        argv: list[str] | None = None,
        is_rank: bool = True,
    ) -> ShimHandle:
        """Runs a Python script, or `argv`, and returns once it has begun."""
        path = self.folder / f"script-{rank}.py"
        path.write_text(script)
        role = f"rank:{rank}" if is_rank else "launcher"
        kind = _Rank if is_rank else _Launcher
        self._children[role] = kind(self.loop, role, None)
        variables = {**os.environ, "RANK": str(rank), "BEFORE": _open(), **(environ or {})}
        self._argv[role] = (argv or [sys.executable, "-u", str(path)]), variables
        self._pool.spawn(role, dict(os.environ), self)
        self.until(lambda: bool((handle := self.handle(rank, role)) and handle.pid))
        found = self.handle(rank, role)
        assert found is not None
        return found

    def handle(self, rank: int, role: str = "") -> ShimHandle | None:
        child = self._children.get(role or f"rank:{rank}")
        return child.handle if child is not None else None

    def registered(self, handle: ShimHandle, out_fd: int, err_fd: int) -> None:
        child, (argv, environ) = self._children[handle.role], self._argv[handle.role]
        path = self.folder / f"{handle.role.replace(':', '-')}.out"

        def keep(data: bytes) -> None:
            with path.open("ab") as file:
                file.write(data)

        streams = [Stream(fd, -1, b"", None, keep, child.stream_ended) for fd in (out_fd, err_fd)]
        child.begin(handle, self._pump, streams, argv, environ, str(self.folder))

    def exited_before_register(self, role: str) -> None:
        raise AssertionError(role)

    def output(self, rank: int = 0) -> str:
        path = self.folder / f"rank-{rank}.out"
        return path.read_text() if path.exists() else ""

    def until(self, condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Runs the loop until the condition holds; fails after the limit."""
        ends_s, holds = time.monotonic() + within(limit_s), False

        def look() -> None:
            nonlocal holds
            holds = bool(condition())
            if holds or time.monotonic() >= ends_s:
                self.loop.stop()
            else:
                self.loop.after(POLL_S, look)

        look()
        self.loop.run()
        assert holds, "".join(path.read_text() for path in self.folder.glob("*.out"))

    def says(self, text: str, rank: int = 0) -> None:
        """Waits for words of a rank."""
        self.until(lambda: text in self.output(rank))

    def ended(self, rank: int = 0) -> int:
        """Waits for the end of a rank; its status."""
        handle = self.handle(rank)
        assert handle is not None
        child = self._children[f"rank:{rank}"]
        self.until(lambda: handle.ended and child.gone)
        return handle.status or 0

    def ask(self, rank: int = 0, what: Ask = EVERYTHING, limit_s: float = 5.0) -> Answer:
        got: list[Mapping[int, Answer]] = []
        self.link.ask([rank], what, within(limit_s), got.append)
        self.until(lambda: got)
        return got[0][rank]

    def asked_until(
        self, condition: Callable[[Answer], object], rank: int = 0, what: Ask = EVERYTHING
    ) -> Answer:
        """Asks again and again until an answer is as it should be."""
        ends_s = time.monotonic() + within(LIMIT_S)
        answer = self.ask(rank, what)
        while not condition(answer):
            assert time.monotonic() < ends_s, (answer, self.output(rank))
            answer = self.ask(rank, what)
        return answer

    def end(self) -> None:
        for child in self._children.values():
            child.release()
        handles = [one.handle for one in self._children.values() if one.handle is not None]
        self.until(lambda: not any(handle.connected for handle in handles))
        self._pool.close()
        self.loop.close()
        for handle in handles:
            os.waitpid(handle.shim_pid, 0)


def _changed(handle: ShimHandle) -> None:
    if handle.child is not None:
        handle.child.changed()


def _open() -> str:
    """What this process has open, some of which everything below it inherits."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return " ".join(os.readlink(link) for link in links if os.path.lexists(link))


def main_thread(answer: Answer) -> ThreadStack:
    (found,) = (thread for thread in answer.threads if thread.is_main)
    assert answer.threads[0] is found
    return found


def where(answer: Answer) -> str:
    """The function that the main thread is in."""
    return main_thread(answer).frames[-1].function


def call_of(answer: Answer, library: str) -> Call:
    (found,) = (call for call in answer.calls if call.library == library)
    return found
