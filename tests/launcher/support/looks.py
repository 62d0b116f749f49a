"""Looks at ranks as values, for tests of verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.run.observe.looks import (
    Answer,
    Call,
    ProcessState,
    RankLook,
    StackFrame,
    ThreadStack,
)

TORCH = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stack(*lines: str) -> tuple[StackFrame, ...]:
    """`train.py:41 step` -> frames, the last one where the thread is."""
    found = []
    for line in lines:
        place, _, function = line.partition(" ")
        file, _, number = place.rpartition(":")
        path = file if file.startswith(("/", "<")) else f"/opt/ml/code/{file}"
        found.append(StackFrame(path, int(number), function or "f"))
    return tuple(found)


def call(
    number: int = 6,
    age_s: float = 38.0,
    op: str = "all_reduce",
    ranks: Sequence[int] = range(4),
    *,
    running: bool = True,
    group: str = "world",
    shape: str = "float32[4]",
    absent: Sequence[int] = (),
) -> Call:
    """A call of a group that waits, unless it is said to have ended."""
    return Call(
        "torch", group, tuple(ranks), op, number, shape, running, age_s, tuple(absent)
    )  # fmt: skip


def look(
    rank: int,
    *calls: Call,
    at: Sequence[str] = ("train.py:41 main",),
    state: str = "S",
    cpu: float = 0.0,
    waits_for: str = "",
    how: str = "agent",
    host: str = "algo-1",
    silent_s: float = 40.0,
    ended: int | None = None,
    wchan: str = "",
) -> RankLook:
    """A rank that waits idly at a line of train.py unless more is said."""
    threads = (ThreadStack("MainThread", True, stack(*at)),) if at else ()
    process = ProcessState(100 + rank, state, wchan, cpu, waits_for)
    return RankLook(rank, host, process, silent_s, Answer(how, threads, calls), ended)


def on_hosts(looks: Sequence[RankLook], hosts: Mapping[int, str]) -> list[RankLook]:
    return [one._replace(host=hosts[one.rank]) for one in looks]
