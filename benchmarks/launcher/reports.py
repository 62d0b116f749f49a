"""Pages of `muster report`: of a small run, and of 256 ranks with 10,000 steps each. The records
are generated; the second takes 0.25 GB of the folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.table import Row, under
from tests.launcher.support.generated_records import Made, metrics_lines, write_record

SMALL = Made()
LARGE = Made(hosts=32, per_host=8, steps=0, seconds=3600.0)
STEPS = 10_000
LIMIT_S = 300.0


def rows(folder: Path, rounds: int) -> Iterator[Row]:
    small = write_record(str(folder / "small"), SMALL)
    yield from _rows("report of 2 x 2 ranks", small, rounds, 1.0, 300.0)
    large = write_record(str(folder / "large"), LARGE)
    lines = metrics_lines(0, LARGE._replace(steps=STEPS))
    for rank in range(LARGE.hosts * LARGE.per_host):
        place = Path(large, f"algo-{rank // LARGE.per_host + 1}", "metrics")
        place.mkdir(exist_ok=True)
        (place / f"rank-{rank}.jsonl").write_text(lines)
    yield from _rows(f"report of 256 ranks x {STEPS:,} steps", large, 3, 10.0, 3000.0)


def _rows(what: str, record: str, rounds: int, most_s: float, most_kb: float) -> Iterator[Row]:
    page = Path(f"{record}.html")
    took = [_make(record, page) for _ in range(rounds)]
    yield Row(what, "s", median(took), {}, (under(median(took), most_s, "s"),),
              f"median of {rounds}, with the start of Python")  # fmt: skip
    size_kb = page.stat().st_size / 1000
    yield Row(f"{what}, page", "kB", size_kb, {}, (under(size_kb, most_kb, "kB"),))


def _make(record: str, page: Path) -> float:
    began = time.monotonic()
    argv = [sys.executable, "-m", "muster", "report", record, "-o", str(page)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    return time.monotonic() - began
