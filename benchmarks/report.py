"""What a run of a benchmark leaves: the table or JSON, the file of results, the exit code."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import Row, missed, render, to_json


class Beginning(NamedTuple):
    """When a run began, in seconds of the monotonic clock, and the machine's load before it."""

    at_s: float
    load: float

    @classmethod
    def now(cls) -> Beginning:
        return cls(time.monotonic(), os.getloadavg()[0])


def report(
    name: str,
    began: Beginning,
    rows: Sequence[Row],
    broken: Mapping[str, str],
    *,
    results: Path | None,
    as_json: bool,
    more: Mapping[str, object] | None = None,
) -> int:
    """Prints `rows`, names what missed its bound or broke off, and returns the exit code: 1 where
    anything did. Writes the same as JSON to `results`, which is None where only some were measured.
    """
    document = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        **(more or {}),
        "load_before": round(began.load, 2),
        "seconds": round(time.monotonic() - began.at_s, 1),
        "broken": dict(broken),
        "rows": to_json(rows),
    }
    text = json.dumps(document, indent=2)
    if results is not None:
        results.parent.mkdir(exist_ok=True)
        results.write_text(text + "\n")
    print(text if as_json else render(rows))
    for row in missed(rows):
        print(f"{name}: MISSED: {row.what}", file=sys.stderr)
    for part, why in broken.items():
        print(f"{name}: {part} broke off: {why}", file=sys.stderr)
    return 1 if missed(rows) or broken else 0
