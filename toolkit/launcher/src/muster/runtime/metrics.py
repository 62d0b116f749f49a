"""Metrics of a script: one line for the platform's expressions, and a file for each rank.

The line of rank 0, `NAME=NUMBER` after `muster metrics`, one space before each:

    muster metrics step=10 samples=640 loss=0.25 accuracy=nan

The entry of every rank in `<record>/<host>/metrics/rank-N.jsonl`, written at once by one call:

    {"schema": 1, "time": 1764.2, "step": 10, "samples": 640, "values": {"loss": 0.25}}

NaN and infinities are strings there ("NaN", "Infinity", "-Infinity"), which float() of Python and
Number() of JavaScript take. A file holds at most `metrics_bytes`: from its middle on every fourth
entry is kept, and so on; `every` in an entry says how many it stands for. What a disk does not take
is left out, and `lost` in the next entry says how many were.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from operator import index
from typing import SupportsFloat, SupportsIndex

from muster.runtime.facts import document, place

PREFIX = "muster metrics"
WINDOW = 64  # calls over which the rate is measured
SLOW_S = 0.05  # a write that takes longer is not repeated for REST times as long
REST = 100
RETRY_S = 1.0
_MOST = 1 << 63
_NOT_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def metrics(
    *,
    step: SupportsIndex | None = None,
    samples: SupportsFloat | None = None,
    **values: SupportsFloat,
) -> None:
    """Reports metrics of this rank: `muster.metrics(step=10, samples=640, loss=loss.item())`.

    `step`: steps made so far, counted as you like, 0 or more. `samples`: samples that this rank has
    processed so far. Values are numbers, or what float() makes one of (a tensor with one element:
    that waits for its device). Rank 0 prints the line, every rank keeps an entry. Takes some
    microseconds. Whatever happens to stdout or the disk, the script goes on.
    Raises ValueError for what is no metric: a value that is no number, a name that is none, a
    negative step, nothing at all.
    """
    if step is None and samples is None and not values:
        raise ValueError("muster.metrics: nothing was given: pass some, such as loss=0.25")
    line, fields, kept, made = PREFIX, "", "", None
    if step is not None:
        made = _step(step)
        line += f" step={made}"
        fields = f'"step": {made}, '
    if samples is not None:
        number = _number("samples", samples)
        if not number >= 0 or number == math.inf:
            raise ValueError(f"muster.metrics: samples={number} counts nothing: pass 0 or more")
        line += f" samples={number}"
        fields += f'"samples": {number}, '
    for name, value in values.items():
        if not name.isidentifier() or not name.isascii():
            raise ValueError(_bad_name(name))
        text = repr(value if type(value) is float else _number(name, value))
        line += f" {name}={text}"
        # names and numbers are as JSON has them: no encoder is needed
        kept += f'"{name}": {_NOT_FINITE.get(text, text)}, '
    _reporter.report(made, line + "\n", f'{fields}"values": {{{kept[:-2]}}}')


def progress() -> tuple[int, float | None] | None:
    """The last step that `metrics` was given, and steps per second over the last calls: None before
    the second. None before the first call with a step."""
    return _reporter.progress()


def _step(step: SupportsIndex) -> int:
    try:
        number = int(index(step))
    except Exception as error:  # of any class that has an __index__
        kind = type(step).__name__
        raise ValueError(
            f"muster.metrics: step is a {kind}: pass a whole number, such as int(step)"
        ) from error
    if not 0 <= number < _MOST:
        raise ValueError(f"muster.metrics: step={number:.4g}: count steps from 0 on")
    return number


def _number(name: str, value: SupportsFloat) -> int | float:
    """A whole number as an int while it is short, anything else as a float."""
    try:
        whole = int(index(value))  # type: ignore[arg-type]  # what has none says so
        return whole if -_MOST < whole < _MOST else float(whole)
    except Exception:
        pass
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return float(value)
    except Exception as error:  # of any class that has a __float__
        kind = type(value).__name__
        raise ValueError(
            f"muster.metrics: {name} is a {kind} and no number: pass one, such as "
            f"{name}=float(value), or value.mean().item() of a tensor"
        ) from error


def _bad_name(name: str) -> str:
    import re

    better = re.sub(r"\W", "_", name, flags=re.ASCII)
    better = better if better.isidentifier() else f"m_{better}"
    return (
        f"muster.metrics: {name!r} cannot be a metric's name, which has letters, digits and _ "
        f"only: name it {better}"
    )


class _Reporter:
    """What this process has reported. It may be used from several threads, and after a fork: every
    entry is one write to a file that is only ever appended to."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._file: _File | None = None
        self._prints = True
        self._pid = os.getpid()

    def report(self, step: int | None, line: str, fields: str) -> None:
        if step is not None:
            points = self._points
            if points and step < points[-1][1]:
                points.clear()  # it counts anew
            points.append((time.monotonic(), step))
        file = self._file
        if file is None:
            file = self._open()
        if self._prints:
            _say(line, os.getpid() != self._pid)
        file.append(fields)

    def progress(self) -> tuple[int, float | None] | None:
        try:
            (time_0, step_0), (time_1, step_1) = self._points[0], self._points[-1]
        except IndexError:
            return None
        return step_1, (step_1 - step_0) / (time_1 - time_0) if time_1 > time_0 else None

    def _open(self) -> _File:
        found = document()
        rank, _ = place(found)
        self._prints = rank in (0, None)
        folder, limit = found.get("metrics"), found.get("metrics_bytes")
        path = f"{folder}/rank-{rank or 0}.jsonl" if folder and isinstance(folder, str) else ""
        self._file = _File(path, limit if isinstance(limit, int) else 0)
        return self._file


def _say(line: str, forked: bool) -> None:
    """`forked`: another thread may have held the lock of stdout then, which nobody opens here."""
    try:
        if forked and _written(line):
            return
        sys.stdout.write(line)
        sys.stdout.flush()
    except Exception:
        pass  # nobody reads, it is closed, there is none, or it is an object of the script's


def _written(line: str) -> bool:
    try:
        return os.write(sys.stdout.fileno(), line.encode()) > 0
    except OSError:  # io.UnsupportedOperation too: an object of the script's
        return False


class _File:
    """Entries of one rank; "" keeps none."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._fd = -1
        self._id = (0, 0)  # device and inode
        self._size = 0
        self._every = 1  # of so many entries one is kept
        self._skipped = 0
        self._lost = 0
        self._not_before = 0.0

    def append(self, fields: str) -> None:
        """`fields`: of the entry, as JSON without braces."""
        if not self._path:
            return
        self._skipped += 1
        if self._skipped < self._every:
            return
        began = time.monotonic()
        if began < self._not_before:
            self._lost += 1
            return
        if self._every > 1:
            fields += f', "every": {self._every}'
        if self._lost:
            fields += f', "lost": {self._lost}'
        line = f'{{"schema": 1, "time": {time.time():.4f}, {fields}}}\n'.encode()
        if self._size + len(line) > self._limit > 0:
            self._lost += 1
            return
        self._skipped = 0
        try:
            size = self._ready()
            written = os.write(self._fd, line)
        except OSError:
            self._lost += 1
            self._not_before = began + RETRY_S
            return
        self._lost = 0 if written == len(line) else 1
        self._size = size + written
        took = time.monotonic() - began
        if took > SLOW_S:
            self._not_before = began + took * (1 + REST)
        while self._size > self._limit - self._limit // (2 * _root(self._every)) > 0:
            self._every *= 4

    def _ready(self) -> int:
        """Its size, once it is open; a script that closes all descriptors may have given ours to
        another file. Raises OSError."""
        if self._fd >= 0:
            try:
                about = os.fstat(self._fd)
                if (about.st_dev, about.st_ino) == self._id:
                    return about.st_size
            except OSError:
                pass
        # the record's folders may not be there yet: they are their owner's alone
        folder = os.path.dirname(self._path)
        host = os.path.dirname(folder)
        for one in (os.path.dirname(host), host, folder):
            try:
                os.mkdir(one, 0o700)
            except FileExistsError:
                pass
        self._fd = os.open(self._path, _FLAGS, 0o644)
        about = os.fstat(self._fd)
        self._id = about.st_dev, about.st_ino
        if about.st_size and os.pread(self._fd, 1, about.st_size - 1) != b"\n":
            os.write(self._fd, b"\n")  # a process that was killed may have left a part of a line
        return about.st_size


def _root(every: int) -> int:
    """2 ** n of 4 ** n: at n the file is full but for 1 / 2 ** n of it."""
    return 1 << (every.bit_length() - 1) // 2


_reporter = _Reporter()
