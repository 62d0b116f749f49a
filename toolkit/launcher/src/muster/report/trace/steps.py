"""Steps of a rank, from the lines of its metrics: a slice from each line to the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from muster.report.cells import Cleaner, number, whole
from muster.report.host import rank_files
from muster.report.lines import Lines
from muster.report.metrics import MOST_NAMES, NO_VALUES
from muster.report.trace.writer import TraceWriter, Track
from muster.types.run_files import METRICS
from muster.types.values import NamedTuple

MOST_STEPS = 1_000_000  # slices of a whole trace, about
LINE_BYTES = 80  # of metrics, about


class StepFile(NamedTuple):
    """The metrics of a rank."""

    rank: int
    path: str


def step_files(folder: str) -> list[StepFile]:
    """Those of the host that lies in the folder."""
    found = rank_files(os.path.join(folder, METRICS))
    return [StepFile(rank, path) for path, rank, kind in found if kind == "jsonl"]


def lines_a_slice(files: Iterable[StepFile], most: int = MOST_STEPS) -> int:
    """How many lines become one slice, so that all ranks together have about `most`."""
    size = 0
    for file in files:
        try:
            size += os.lstat(file.path).st_size
        except OSError:
            pass  # said when it is read
    return 1 + size // (most * LINE_BYTES)


class StepWriter:
    """Writes the steps of one rank. `at`: seconds since the trace began of a time since 1970;
    `bounds`: when its process ran, outside of which its slice would not hold them."""

    def __init__(
        self,
        writer: TraceWriter,
        track: Track,
        at: Callable[[float], float | None],
        bounds: tuple[float, float],
        clean: Cleaner,
    ) -> None:
        self._writer = writer
        self._track = track
        self._at = at
        self._bounds = bounds
        self._clean = clean
        self._names: dict[str, str] = {}
        self._last: tuple[float, int] | None = None
        self._outside = 0

    def write(self, file: StepFile, every: int) -> list[str]:
        """What is missing of them, in sentences. Raises OSError where they cannot be read."""
        lines, count, entry = Lines(file.path), 0, None
        for piece in lines.pieces():
            for entry in piece:
                if count % every == 0:
                    self._take(entry, count, file.rank)
                count += 1
        if entry is not None and (count - 1) % every:
            self._take(entry, count - 1, file.rank)  # the last one
        said = {
            f"{lines.bad:,} lines of the metrics of rank {file.rank} cannot be read": lines.bad,
            f"the last {lines.beyond:,} bytes of the metrics of rank {file.rank} are left out, "
            "they are too long": lines.beyond,
            f"{self._outside:,} lines of the metrics of rank {file.rank} have no time at which it "
            "ran": self._outside,
        }
        return [text for text, found in said.items() if found]

    def _take(self, entry: Mapping[str, Any], count: int, rank: int) -> None:
        """A line ends a slice, and begins the next one unless it has no place in the trace."""
        time = number(entry.get("time"))
        at_s = None if time is None else self._at(time)
        step = whole(entry.get("step"))
        step = count if step is None else step
        begins, ends = self._bounds
        before, self._last = self._last, None
        if at_s is None or not begins <= at_s <= ends:
            self._outside += 1
            return
        self._last = at_s, step
        values = self._values(entry)
        name = f"rank {rank} metric"
        finite = {key: found for key, one in values.items() if (found := number(one)) is not None}
        self._writer.counter(self._track, name, at_s, finite)
        if before is None or before[1] > step or before[0] > at_s:
            return  # the first one, or it counts anew
        if (samples := number(entry.get("samples"))) is not None:
            values["samples"] = samples
        first = before[1] + 1
        name = f"step {step}" if first >= step else f"steps {first}-{step}"
        self._writer.slice(self._track, name, before[0], at_s, values)

    def _values(self, entry: Mapping[str, Any]) -> dict[str, object]:
        """Numbers as they are, what is not finite in words; of a bounded number of names."""
        values = entry.get("values")
        if not isinstance(values, dict):
            values = {key: one for key, one in entry.items() if key not in NO_VALUES}
        names = self._names
        found: dict[str, object] = {}
        for key, one in values.items():
            name = names.get(key)
            if name is None:
                if len(names) >= MOST_NAMES:
                    continue
                name = names[key] = self._clean.text(key, 80)
            if type(one) is float or type(one) is int:
                finite = number(one)
                found[name] = one if finite is not None else str(one)
            elif isinstance(one, str):
                found[name] = self._clean.text(one, 80)
        return found
