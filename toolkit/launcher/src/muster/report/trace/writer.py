"""Chrome's trace events, written as they come: nothing of them is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

from muster.types.values import NamedTuple

FIRST_THREAD = 10_000  # a thread whose number is its process's is that one's main thread
_encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode
_HEAD = '{"displayTimeUnit":"ms","traceEvents":['


class Sink(Protocol):
    """What takes the bytes of a trace."""

    def write(self, data: bytes, /) -> int: ...


class Track(NamedTuple):
    """A thread of the trace."""

    pid: int
    tid: int


class TraceWriter:
    """One trace. Times are seconds since its beginning, written as whole microseconds, so that
    neighbouring slices never overlap. `events`: how many were written. Raises OSError."""

    def __init__(self, file: Sink) -> None:
        self.events = 0
        self._file = file
        self._processes = 0
        self._threads = FIRST_THREAD
        self._lanes: dict[tuple[int, str], list[tuple[Track, float]]] = {}
        self._rows = [_HEAD]

    def process(self, name: str) -> Track:
        """A new process: its main thread."""
        self._processes += 1
        track = Track(self._processes, self._processes)
        self._name(track, "process_name", name)
        self._name(track, "thread_name", name)
        return track

    def thread(self, process: Track, name: str) -> Track:
        """A new thread of it."""
        self._threads += 1
        track = Track(process.pid, self._threads)
        self._name(track, "thread_name", name)
        return track

    def lane(self, process: Track, name: str, begins_s: float, ends_s: float) -> Track:
        """A thread of that name on which nothing else is at this time: slices of one may not
        overlap. To be asked in the order of beginnings."""
        lanes = self._lanes.setdefault((process.pid, name), [])
        for at, (track, free_s) in enumerate(lanes):
            if free_s <= begins_s:
                lanes[at] = track, ends_s
                return track
        track = self.thread(process, name)
        lanes.append((track, ends_s))
        return track

    def slice(
        self, track: Track, name: str, begins_s: float, ends_s: float, args: Mapping[str, object]
    ) -> None:
        begins = _microseconds(begins_s)
        self.event({"ph": "X", "name": name, "pid": track.pid, "tid": track.tid, "ts": begins,
                    "dur": max(0, _microseconds(ends_s) - begins), "args": args})  # fmt: skip

    def instant(
        self, track: Track, name: str, at_s: float, args: Mapping[str, object], scope: str = "t"
    ) -> None:
        """`scope`: t, of its thread, or p, of its process."""
        self.event({"ph": "i", "s": scope, "name": name, "pid": track.pid, "tid": track.tid,
                    "ts": _microseconds(at_s), "args": args})  # fmt: skip

    def counter(self, process: Track, name: str, at_s: float, values: Mapping[str, float]) -> None:
        """Each value is a track of its own, named after both."""
        if values:
            self.event({"ph": "C", "name": name, "pid": process.pid, "tid": process.pid,
                        "ts": _microseconds(at_s), "args": values})  # fmt: skip

    def event(self, event: Mapping[str, Any]) -> None:
        """As it is."""
        if self.events:
            self._rows.append(",\n")
        self.events += 1
        try:
            self._rows.append(_encoded(event))
        except ValueError:  # JSON has no word for what is not finite
            self._rows.append(_encoded(_finite(event)))
        if len(self._rows) > 2_000:
            self._flush()

    def close(self) -> None:
        self._rows.append("]}\n")
        self._flush()

    def _name(self, track: Track, kind: str, name: str) -> None:
        self.event({"ph": "M", "name": kind, "pid": track.pid, "tid": track.tid,
                    "args": {"name": name}})  # fmt: skip

    def _flush(self) -> None:
        self._file.write("".join(self._rows).encode())
        self._rows.clear()


def _finite(value: object) -> object:
    """The value without what JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _microseconds(seconds: float) -> int:
    """As the format counts: whole numbers, which are exact."""
    return round(seconds * 1e6)
