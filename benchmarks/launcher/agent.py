"""What the agent in a rank's Python costs: its start, and a step of 1 ms while it is asked."""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.table import Row, under
from benchmarks.timing import interleaved
from muster.run.child.rank_shim import agent_words

STARTS, RUNS, STEPS = 100, 30, 1000
ASKED_EVERY_S = 1.0
START_MS, STEP_SHARE = 3.0, 1.0
_READ_BYTES = 1 << 20
# one step is about 1 ms of Python; the time of the steps goes to stdout
_STEPS = f"""
import time
def step(size):
    total = 0
    for number in range(size):
        total += number * number % 7
    return total
size, took = 1000, 0.0
while took < 1e-3:
    size += size // 4
    took = min((began := time.perf_counter(), step(size), time.perf_counter() - began)[2]
               for _ in range(5))
size = SIZE or size
began = time.process_time()  # of all threads; other processes of a busy machine do not count
for _ in range({STEPS}):
    step(size)
print(time.process_time() - began, size)
"""


def rows() -> Iterator[Row]:
    yield _start()
    yield _step()


def _start() -> Row:
    times = interleaved(
        {"bare": lambda: _bare(["pass"]), "agent": lambda: _asked(["pass"])}, STARTS
    )
    bare, agent = times["bare"], times["agent"]
    more = (agent.median - bare.median) * 1000
    return Row(
        "start of a rank with its agent, over one without", "ms", more, {},
        (under(more, START_MS, "ms"),),
        f"medians of {STARTS} in turns: {bare.median * 1000:.2f} and {agent.median * 1000:.2f} ms; "
        f"best {bare.best * 1000:.2f} and {agent.best * 1000:.2f} ms",
    )  # fmt: skip


def _step() -> Row:
    size = 0
    shares = []
    for turn in range(RUNS):
        took = {}
        for run in (_bare, _asked) if turn % 2 else (_asked, _bare):
            took[run], size = _steps(run, size)
        shares.append((took[_asked] / took[_bare] - 1) * 100)
    more = statistics.median(shares)
    return Row(
        f"step of 1 ms with an agent that is asked every {ASKED_EVERY_S:g} s", "%", more, {},
        (under(more, STEP_SHARE, "%"),),
        f"processor time, median of {RUNS} pairs of {STEPS} steps, the order in turns",
    )  # fmt: skip


def _steps(run: Callable[..., float], size: int) -> tuple[float, int]:
    """How long the steps took, and how much one of them does."""
    reading, writing = os.pipe()
    run([_STEPS.replace("SIZE", str(size))], writing)
    os.close(writing)
    took, made = os.read(reading, 100).split()
    os.close(reading)
    return float(took), int(made)


def _bare(words: list[str], output: int = -1) -> float:
    began = time.monotonic()
    pid = _python(words, (), output)
    os.waitpid(pid, 0)
    return time.monotonic() - began


def _asked(words: list[str], output: int = -1) -> float:
    """The same with an agent, as a shim starts it; seconds to its end."""
    ours, its = socket.socketpair()
    reading, writing = os.pipe()
    os.set_inheritable(its.fileno(), True)
    os.set_inheritable(writing, True)
    began = time.monotonic()
    pid = _python(words, (its.fileno(), writing), output)
    its.close()
    ours.settimeout(ASKED_EVERY_S)
    for number in count(1):
        try:
            if not ours.recv(_READ_BYTES):
                break  # it has ended
        except TimeoutError:
            ours.sendall(b"%d stacks threads calls\n" % number)
    _, status = os.waitpid(pid, 0)
    took = time.monotonic() - began
    ours.close()
    os.close(reading)
    os.close(writing)
    if status:
        raise RuntimeError(f"a rank ended with {os.waitstatus_to_exitcode(status)}")
    return took


def _python(words: list[str], agent: tuple[int, ...], output: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        if output >= 0:
            os.dup2(output, 1)
        more = {"RANK_AGENT": agent_words(os.getpid(), agent).decode()} if agent else {}
        os.execve(sys.executable, [sys.executable, "-c", *words], {**os.environ, **more})
    finally:
        os._exit(127)
