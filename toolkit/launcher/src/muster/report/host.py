"""One host's folder in a record."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from muster.report.cells import Cleaner, mapping, number, sequence, whole
from muster.report.lines import Lines, tail
from muster.report.metrics import read_metrics
from muster.report.values import HostRecord, RankCalls, RankMetrics, RecordEvent, SamplePoint
from muster.types.names import counted
from muster.types.run_files import COLLECTIVES, EVENTS, LOGS, METRICS, STACKS

SCHEMA = 1
MOST_EVENTS = 20_000  # of one host, besides samples
MOST_SAMPLES = 1_000  # of one rank, thinned beyond twice that
MOST_FILES = 16_384
TAIL_BYTES = 4 << 10
STACKS_BYTES = 32 << 10
SUMMARY_BYTES = 1 << 20
_RANK_FILE = re.compile(r"rank-([0-9]{1,7})\.(out|err|jsonl)")


def read_host(
    folder: str, name: str, clean: Cleaner, wanted: Callable[[int], bool], metrics: bool = True
) -> tuple[HostRecord, list[str]]:
    """The host, and what is missing of it, in sentences. `wanted`: of which ranks the end of the
    log is read; `metrics`: theirs, too. Raises nothing: what cannot be read is missing."""
    missing: list[str] = []
    events, samples, since_s = _events(os.path.join(folder, EVENTS), name, clean, missing)
    calls, backends = _calls(os.path.join(folder, COLLECTIVES), clean, since_s)
    host = HostRecord(
        name=name,
        events=events,
        samples=samples,
        metrics=_metrics(os.path.join(folder, METRICS), name, clean, missing, since_s)
        if metrics
        else {},
        calls=calls,
        backends=backends,
        tails=_tails(os.path.join(folder, LOGS), clean, wanted),
        stacks=_stacks(os.path.join(folder, STACKS), clean),
    )
    return host, missing


def _events(
    path: str, name: str, clean: Cleaner, missing: list[str]
) -> tuple[tuple[RecordEvent, ...], dict[int, tuple[SamplePoint, ...]], float]:
    """Events, samples, and when the last start was, 0 where it is the only one: `train` adds to
    the record of a container that is started again."""
    lines = Lines(path)
    starts, since_s = _Starts(), 0.0
    events: list[RecordEvent] = []
    samples: dict[int, list[SamplePoint]] = {}
    newer = left_out = 0
    try:
        for piece in lines.pieces():
            for line in piece:
                newer += (whole(line.get("schema")) or 0) > SCHEMA
                rank, kind = whole(line.get("rank")), line.get("kind")
                if kind == "phase" and starts.again(line.get("name")):
                    events, samples, left_out = [], {}, 0
                    since_s = number(line.get("time")) or 0.0
                if kind == "sample" and rank is not None:
                    _add_sample(samples.setdefault(rank, []), line)
                elif len(events) < MOST_EVENTS:
                    event = _event(line, rank, clean)
                    if event is not None:
                        events.append(event)
                else:
                    left_out += 1
    except OSError as error:
        missing.append(f"{name}: no events ({error.strerror or error})")
    if lines.bad:
        missing.append(f"{name}: {counted(lines.bad, 'line')} of its events cannot be read")
    if lines.beyond or left_out:
        what = f"{left_out:,} events" if left_out else f"the last {lines.beyond:,} bytes"
        missing.append(f"{name}: {what} of its record are left out, it is too long")
    if newer:
        missing.append(f"{name}: written by a newer muster; what this one does not know is left "
                       "out: use that version for the whole")  # fmt: skip
    if starts.earlier:
        missing.append(f"{name}: {counted(starts.earlier, 'earlier start')} of its container")
    return tuple(events), {rank: tuple(found) for rank, found in samples.items()}, since_s


class _Starts:
    """Counts how often `train` has begun, by the phases that it has entered."""

    def __init__(self) -> None:
        self.earlier = 0
        self._begun = False

    def again(self, phase: object) -> bool:
        """Whether it begins anew with this one."""
        anew = self._begun and phase in ("join", "stage")
        self.earlier += anew
        self._begun = phase != "join"
        return anew


def _event(line: dict[str, Any], rank: int | None, clean: Cleaner) -> RecordEvent | None:
    t, kind = number(line.get("t")), line.get("kind")
    if t is None or not isinstance(kind, str):
        return None
    fields = {key: clean.all(value) for key, value in line.items()
              if key not in ("t", "time", "kind", "rank", "host", "schema")}  # fmt: skip
    return RecordEvent(t, number(line.get("time")) or 0.0, clean.text(kind, 60), rank, fields)


def _add_sample(kept: list[SamplePoint], line: dict[str, Any]) -> None:
    t = number(line.get("t"))
    if t is None:
        return
    state = line.get("state")
    kept.append(
        SamplePoint(
            t,
            number(line.get("cpu_s")),
            number(line.get("memory_bytes")),
            number(line.get("run_delay_s")),
            number(line.get("throttled_s")),
            number(line.get("silent_s")),
            state if isinstance(state, str) and len(state) == 1 and state.isalpha() else "",
        )
    )
    if len(kept) > 2 * MOST_SAMPLES:
        # of two neighbours the one with more memory: a peak stays; sums lose nothing
        pairs = zip(kept[:-1:2], kept[1:-1:2], strict=False)
        kept[:-1] = [max(pair, key=lambda one: one.memory_bytes or 0.0) for pair in pairs]


def _metrics(
    folder: str, name: str, clean: Cleaner, missing: list[str], since_s: float
) -> dict[int, RankMetrics]:
    found: dict[int, RankMetrics] = {}
    bad = Counter[str]()
    for path, rank, _ in rank_files(folder):
        try:
            metrics, lines = read_metrics(path, since_s)
        except OSError as error:
            bad[str(error.strerror)] += 1
            continue
        bad["lines"] += lines
        series = {clean.text(key, 80): one for key, one in metrics.series.items()}
        found[rank] = metrics._replace(series=series)
    lines = bad.pop("lines", 0)
    if lines:
        missing.append(f"{name}: {counted(lines, 'line')} of its metrics cannot be read")
    missing += [f"{name}: metrics of {counted(n, 'rank')} cannot be read ({why})"
                for why, n in bad.items()]  # fmt: skip
    return found


def _calls(
    folder: str, clean: Cleaner, since_s: float
) -> tuple[dict[int, RankCalls], tuple[str, ...]]:
    """From the summaries that muster_collectives has written since then: by rank of the world, over
    its groups; and what carried them."""
    calls: dict[int, RankCalls] = {}
    backends: dict[str, None] = {}
    for path in files_in(folder):
        if not path.endswith(".json"):
            continue
        try:
            if os.stat(path).st_mtime < since_s:
                continue
            document = mapping(json.loads(tail(path, SUMMARY_BYTES)))
        except (OSError, ValueError, RecursionError):
            continue
        rank, members = whole(document.get("rank")), sequence(document.get("global_ranks"))
        waited = number(document.get("wait_s"))
        if rank is None or waited is None:
            continue
        own = whole(members[rank]) if 0 <= rank < len(members) else rank
        if own is None:
            continue
        before, time_s = calls.get(own, RankCalls(0.0, 0.0)), number(document.get("time_s"))
        known = time_s is not None and before.time_s is not None
        calls[own] = RankCalls(
            before.wait_s + waited, (before.time_s or 0.0) + (time_s or 0.0) if known else None
        )
        if transport := clean.text(document.get("transport"), 40):
            backends[f"muster collectives ({transport})"] = None
    return calls, tuple(sorted(backends)[:4])


def _tails(folder: str, clean: Cleaner, wanted: Callable[[int], bool]) -> dict[int, str]:
    """Of each rank what it wrote last to stderr, or else to stdout."""
    tails: dict[int, str] = {}
    for path, rank, kind in rank_files(folder):
        if not wanted(rank) or (kind == "out" and tails.get(rank)):
            continue
        try:
            text = clean.text(tail(path, TAIL_BYTES).rstrip(), TAIL_BYTES)
        except OSError:
            continue
        if text:
            tails[rank] = text
    return tails


def _stacks(folder: str, clean: Cleaner) -> dict[str, str]:
    found = {}
    for path in list(files_in(folder))[-4:]:
        try:
            text = clean.text(tail(path, STACKS_BYTES), STACKS_BYTES)
        except OSError:
            continue
        found[clean.text(os.path.basename(path), 200)] = text
    return found


def rank_files(folder: str) -> Iterator[tuple[str, int, str]]:
    """Path, rank and ending of the files of ranks, in their order."""
    found = [(match, path) for path in files_in(folder)
             if (match := _RANK_FILE.fullmatch(os.path.basename(path)))]  # fmt: skip
    for match, path in sorted(found, key=lambda one: (int(one[0][1]), one[0][2])):
        yield path, int(match[1]), match[2]


def files_in(folder: str) -> list[str]:
    """Sorted paths, of a bounded number; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(found)[:MOST_FILES]
