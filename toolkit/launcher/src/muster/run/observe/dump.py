"""The text in which Python's faulthandler writes the stacks of all threads."""

from __future__ import annotations

import os

from muster.run.observe.looks import StackFrame, ThreadStack

_HEAD = "(most recent call first):"
_AGENT = os.path.join("rank_bootstrap", "agent.py")


def parse_dump(text: str) -> tuple[ThreadStack, ...]:
    """The threads, the main one first: Python lists the oldest last. Where the list was cut off, it
    is not known which one it is. Lines that are none of its own are left out."""
    threads: list[tuple[str, list[StackFrame]]] = []
    whole = True
    for line in text.splitlines():
        if line.endswith(_HEAD):
            threads.append((_name(line), []))
        elif line.startswith('  File "') and threads:
            frame = _frame(line)
            if frame is not None:
                threads[-1][1].append(frame)
        elif line == "...":
            whole = False
    last = len(threads) - 1
    found = [
        ThreadStack(name or ("MainThread" if is_main else ""), is_main, tuple(reversed(frames)))
        for at, (name, frames) in enumerate(threads)
        if not any(frame.file.endswith(_AGENT) for frame in frames)
        for is_main in (whole and at == last,)
    ]
    return tuple(sorted(found, key=lambda thread: not thread.is_main))


def _name(head: str) -> str:
    """`Thread 0x00007f [name] (most recent call first):`, without a name before Python 3.14."""
    _, _, rest = head.partition(" [")
    return rest.rpartition("] ")[0]


def _frame(line: str) -> StackFrame | None:
    """`  File "train.py", line 12 in main`."""
    file, _, rest = line[len('  File "') :].rpartition('", line ')
    number, _, function = rest.partition(" in ")
    return StackFrame(file, int(number) if number.isdigit() else 0, function) if file else None
