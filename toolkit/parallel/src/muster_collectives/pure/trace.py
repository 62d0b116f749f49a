"""Counters and the last operations of a group without a core."""

from __future__ import annotations

import time
from collections import deque

from muster_collectives.runtime.types import (
    DTYPE_BYTES,
    Code,
    Description,
    Path,
    Record,
    Stats,
    Verb,
)

_RECORDS = 128


class Journal:
    def __init__(self, size: int) -> None:
        self._path = Path.ALONE if size == 1 else Path.STAGED
        self._records: deque[Record] = deque(maxlen=_RECORDS)
        self._calls = dict.fromkeys(Verb, 0)
        self._bytes = dict.fromkeys(Verb, 0)
        self._paths = dict.fromkeys(Path, 0)
        self._times_s = dict.fromkeys(Verb, 0.0)
        self._wait_s = 0.0
        self.sends = 0
        self.receives = 0
        self.sends_bytes = 0
        self.receives_bytes = 0

    def note(self, what: Description, began_s: float, code: Code, moved: int) -> None:
        """`moved`: elements that this rank gave, also where they differ by rank."""
        took_s = time.monotonic() - began_s
        self._records.append(Record(what, began_s, took_s, code, self._path))
        self._calls[what.verb] += 1
        self._bytes[what.verb] += moved * DTYPE_BYTES[what.dtype]
        self._paths[self._path] += 1
        self._times_s[what.verb] += took_s

    def waited(self, wait_s: float) -> None:
        self._wait_s += wait_s

    def records(self) -> tuple[Record, ...]:
        return tuple(self._records)

    def stats(self) -> Stats:
        return Stats(
            calls=dict(self._calls), bytes=dict(self._bytes), paths=dict(self._paths),
            sends=self.sends, receives=self.receives, sends_bytes=self.sends_bytes,
            receives_bytes=self.receives_bytes, time_s=sum(self._times_s.values()),
            wait_s=self._wait_s, times_s=dict(self._times_s),
        )  # fmt: skip
