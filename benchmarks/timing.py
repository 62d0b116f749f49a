"""Times of commands, taken in turns so that a busy machine slows all of them alike."""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

_LIMIT_S = 120.0


class Times(NamedTuple):
    """Seconds of every round of one command."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


def interleaved(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Times]:
    """Calls every case once per round, A B C A B C ..., after one round that does not count.

    A case returns its own seconds, so that its preparation is not timed.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            seconds = case()
            if turn:
                found[name].append(seconds)
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def wall(argv: Sequence[str], environ: Mapping[str, str], cwd: str | None = None) -> float:
    """Seconds that the command took. Raises RuntimeError when it fails or does not end."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = _start(argv, environ, cwd, output.fileno())
        status = _wait(child)
        took = time.monotonic() - began
        if status != 0:
            output.seek(0)
            text = output.read().decode(errors="replace")[-600:]
            raise RuntimeError(f"{' '.join(argv)} ended with {status}:\n{text}")
    return took


def wall_together(commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> float:
    """Seconds until the last of the commands, started at once, has ended."""
    began = time.monotonic()
    children = [_start(argv, environ, None, subprocess.DEVNULL) for argv in commands]
    statuses = [_wait(child) for child in children]
    if any(statuses):
        raise RuntimeError(f"{' '.join(commands[0])} and its like ended with {statuses}")
    return time.monotonic() - began


def first_line(argv: Sequence[str], environ: Mapping[str, str]) -> float:
    """Seconds until the command's first line on either stream; then it may end by itself."""
    reading, writing = os.pipe()
    with open(reading, "rb") as output:
        began = time.monotonic()
        child = _start(argv, environ, None, writing)
        os.close(writing)
        line = output.readline()
        took = time.monotonic() - began
        rest = output.read()
    status = _wait(child)
    if status != 0 or not line:
        text = (line + rest).decode(errors="replace")[-600:]
        raise RuntimeError(f"{' '.join(argv)} ended with {status}:\n{text}")
    return took


def _start(
    argv: Sequence[str], environ: Mapping[str, str], cwd: str | None, output: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, env=environ, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def _wait(child: subprocess.Popen[bytes]) -> int:
    """The child's status, without the 50 ms steps in which `Popen.wait` looks for a deadline."""
    handle = os.pidfd_open(child.pid)
    try:
        ended, _, _ = select.select([handle], [], [], _LIMIT_S)
    finally:
        os.close(handle)
    if not ended:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise RuntimeError(f"{child.args!r} did not end within {_LIMIT_S:g} s")
    return child.wait()
