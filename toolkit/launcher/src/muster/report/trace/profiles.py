"""Traces that a script wrote with torch.profiler, on the clock of the run and below their rank.

A file of its: {"distributedInfo": {"rank": 2}, "baseTimeNanoseconds": 1790857026000000000,
"traceEvents": [{"ph": "X", "ts": 5053652444793.253, "dur": 1.5, "pid": 21, "tid": 31, ...}, ...]}.
`ts` and `dur` are microseconds, whatever `displayTimeUnit` says; base and ts make the time since
1970 (torch before 2.4 has no base). Files are read in pieces: they may have gigabytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from muster.report.archive import PROFILES
from muster.report.cells import Cleaner, mapping, number, whole
from muster.report.trace.writer import TraceWriter, Track
from muster.types.files import open_plain

MOST_FILES = 256
MOST_FOLDERS = 2_000
MOST_EVENTS = 2_000_000  # of all files
MOST_READ = 2 << 30  # characters of one file
MOST_OBJECT = 4 << 20  # characters of one event, or of what comes before the first
NEAR_S = 60.0  # a file whose first event is farther from the run's time has another clock
_PIECE = 1 << 20
_SHOWN = frozenset("XBEiICstfben")
_BOUND = frozenset("stfben")  # events with an `id` that counts in their file
_OF_PROFILER = ("Traces", "")  # processes of its marks of when it began and ended
_BETWEEN = " \t\r\n,"


class NoProfileError(Exception):
    """The file cannot be merged; the text says why."""


def profile_files(folders: Iterator[str]) -> list[str]:
    """Sorted paths, of a bounded number."""
    found, seen = set(), 0
    for folder in folders:
        for path, _, names in os.walk(folder):
            found |= {os.path.join(path, name) for name in names if name.endswith(PROFILES)}
            seen += 1
            if seen > MOST_FOLDERS:
                return sorted(found)
    return sorted(found)


class Profiles:
    """Merges files into a trace. `at_wall(rank, time)`: seconds since the trace began of a time
    since 1970; `rank_of`: of a process, by its number and the file's path; `process_of`: of the
    host of a rank; `end_s`: of the run. KeyError of theirs: it is not known."""

    def __init__(
        self,
        writer: TraceWriter,
        at_wall: Callable[[int, float], float | None],
        rank_of: Callable[[int, str], int],
        process_of: Callable[[int], Track],
        end_s: float,
        clean: Cleaner,
    ) -> None:
        self._writer = writer
        self._at_wall = at_wall
        self._rank_of = rank_of
        self._process_of = process_of
        self._end_s = end_s
        self._clean = clean
        self._texts: dict[str, str] = {}
        self._left = MOST_EVENTS
        self._ids = 0

    def merge(self, path: str) -> str:
        """What is missing of the file in a sentence, or ""."""
        name = self._clean.text(os.path.basename(path), 200)
        try:
            with _text_of(path) as text:
                why = self._merge(text, path)
        except NoProfileError as error:
            why = str(error)
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            why = f"it is damaged ({getattr(error, 'strerror', None) or error})"
        return f"profile {name}: {why}" if why else ""

    def _merge(self, text: IO[str], path: str) -> str:
        """As `merge`. A file is known only with its first event, whose process and time say what
        its header may not: whose it is, and whether its clock is the run's."""
        objects = Objects(text)
        header = objects.header()
        rank = whole(mapping(header.get("distributedInfo")).get("rank"))
        base_s = (number(header.get("baseTimeNanoseconds")) or 0.0) / 1e9
        tracks: dict[tuple[object, object], Track] = {}
        names: dict[tuple[object, object], str] = {}
        ids: dict[tuple[object, object], int] = {}
        shift_us: float | None = None
        for event in objects:
            key = _number_or_text(event.get("pid")), _number_or_text(event.get("tid"))
            if event.get("ph") == "M":
                self._learn(event, key, names)
                continue
            ts = number(event.get("ts"))
            if event.get("ph") not in _SHOWN or ts is None or key[0] in _OF_PROFILER:
                continue
            if shift_us is None:
                rank = self._known(rank, whole(event.get("pid")), path)
                shift_us = self._shift_us(rank, base_s, ts)
            if not self._left:
                return f"only its beginning is there: {MOST_EVENTS:,} events of profiles are shown"
            assert rank is not None
            if key not in tracks:
                label = names.get((key[0], None), "")
                thread = names.get(key) or f"thread {self._text(str(key[1]))}"
                tracks[key] = self._writer.thread(
                    self._process_of(rank), " ".join(filter(None, (f"rank {rank}", label, thread)))
                )
            self._write(event, tracks[key], ts + shift_us, ids)
        return "its end is missing" if objects.cut else ""

    def _known(self, rank: int | None, pid: int | None, path: str) -> int:
        try:
            if rank is None:
                rank = self._rank_of(-1 if pid is None else pid, path)
            self._process_of(rank)
        except KeyError:
            raise NoProfileError("left out, it is of no rank that the record knows") from None
        return rank

    def _shift_us(self, rank: int, base_s: float, ts: float) -> float:
        """What makes its `ts` the trace's."""
        # base and ts apart have all digits of a nanosecond; their sum is good for a microsecond
        at_s = self._at_wall(rank, base_s + ts / 1e6)
        if at_s is None or not -NEAR_S <= at_s <= self._end_s + NEAR_S:
            raise NoProfileError("left out, its times are not those of the run")
        return float(round(at_s * 1e6 - ts))

    def _learn(
        self,
        event: Mapping[str, Any],
        key: tuple[object, object],
        names: dict[tuple[object, object], str],
    ) -> None:
        """Names stand before the events that they are of; a process's under no thread."""
        args = mapping(event.get("args"))
        if event.get("name") == "thread_name":
            names[key] = self._text(args.get("name"))
        elif event.get("name") == "process_labels" and args.get("labels") != "CPU":
            names[key[0], None] = self._text(args.get("labels"))

    def _write(
        self, event: Mapping[str, Any], track: Track, ts: float, ids: dict[Any, int]
    ) -> None:
        """Arrows between events have numbers that two files may both have used: they get new
        ones."""
        phase = event["ph"]
        if ts < 0:
            return  # Perfetto has no time before the beginning
        row: dict[str, object] = {
            "ph": phase, "name": self._text(event.get("name")), "pid": track.pid,
            "tid": track.tid, "ts": round(ts, 3),
        }  # fmt: skip
        if phase == "X":
            row["dur"] = max(0.0, number(event.get("dur")) or 0.0)
        if phase in _BOUND:
            own = self._text(event.get("cat")), _number_or_text(event.get("id"))
            if own not in ids:
                self._ids += 1
                ids[own] = self._ids
            row["id"] = ids[own]
        if "cat" in event:
            row["cat"] = self._text(event["cat"])
        if phase == "f" and event.get("bp") == "e":
            row["bp"] = "e"
        if args := mapping(event.get("args")):
            row["args"] = {self._text(key): self._value(one) for key, one in args.items()}
        self._writer.event(row)
        self._left -= 1

    def _value(self, value: object) -> object:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, float) and number(value) is None:
            return str(value)
        return self._clean.all(value, 3) if isinstance(value, list | dict) else value

    def _text(self, value: object) -> str:
        """As the page would show it; most of them come again and again."""
        if not isinstance(value, str):
            return ""
        found = self._texts.get(value)
        if found is None:
            if len(self._texts) > 50_000:
                self._texts.clear()
            found = self._texts[value] = self._clean.text(value, 400).strip()
        return found


class Objects:
    """The events of one file. After the last: `cut`, it ended before them. Raises
    NoProfileError, and what reading raises."""

    def __init__(self, text: IO[str]) -> None:
        self.cut = False
        self._text = text
        self._buffer = ""
        self._read = 0

    def header(self) -> dict[str, Any]:
        """What stands before the events."""
        while (at := self._buffer.find('"traceEvents"')) < 0 or "[" not in self._buffer[at:]:
            if len(self._buffer) > MOST_OBJECT or not self._more(0):
                raise NoProfileError("left out, it has no traceEvents")
        before, start = self._buffer[:at], self._buffer.index("[", at) + 1
        self._buffer = self._buffer[start:]
        found = json.loads(before.rstrip().rstrip(",") + "}")
        return found if isinstance(found, dict) else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        decode = json.JSONDecoder().raw_decode
        at = 0  # in the buffer, which is only cut where it is filled: not at each event
        while True:
            while at < len(self._buffer) and self._buffer[at] in _BETWEEN:
                at += 1
            if self._buffer[at : at + 1] == "]":
                return
            try:
                found, at = decode(self._buffer, at)
            except ValueError:
                if len(self._buffer) - at > MOST_OBJECT:
                    raise
                if not self._more(at):
                    self.cut = True
                    return
                at = 0
                continue
            if isinstance(found, dict):
                yield found

    def _more(self, done: int) -> bool:
        piece = self._text.read(_PIECE) if self._read < MOST_READ else ""
        self._read += len(piece)
        self._buffer = self._buffer[done:] + piece
        return bool(piece)


@contextmanager
def _text_of(path: str) -> Iterator[IO[str]]:
    with open_plain(path) as raw:
        packed = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
        yield io.TextIOWrapper(packed, encoding="utf-8", errors="replace")


def _number_or_text(value: object) -> object:
    return value if isinstance(value, int | str) else None
