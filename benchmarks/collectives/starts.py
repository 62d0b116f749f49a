"""Rows of making a group: from the last rank's coming to the last rank that has it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from benchmarks.table import Row, under
from tests.collectives.support import ranks
from tests.support.ports import free_port

PROCESSES = 8
SIZES = {64: 100.0, 256: 250.0}  # ranks, and their bound in ms
GIVE_UP_S = 240.0


def rows(rounds: int) -> Iterator[Row]:
    """Ranks are threads of 8 processes: what is measured is the store and the way through it."""
    for size, limit_ms in SIZES.items():
        times = _times(size, rounds)
        middle = statistics.median(times)
        yield Row(
            f"making a group of {size} ranks", "ms", middle, {}, (under(middle, limit_ms, "ms"),),
            f"last rank's coming to the last return, over torch's store; {PROCESSES} processes of "
            f"{size // PROCESSES} threads; {len(times)} groups, best {min(times):.0f}, worst "
            f"{max(times):.0f}",
        )  # fmt: skip


def _times(size: int, rounds: int) -> list[float]:
    """In ms, of one group after another."""
    threads, port = size // PROCESSES, free_port()
    argv = ["-m", "benchmarks.collectives.starts_rank", str(threads), str(port), str(rounds)]
    ended = ranks.run(PROCESSES, argv, timeout_s=GIVE_UP_S)
    if any(each.code for each in ended):
        raise RuntimeError(ranks.shown(ended)[-3000:])
    found = [
        [json.loads(line) for line in each.output.splitlines() if line.startswith("{")]
        for each in ended
    ]
    return [
        (max(each["had"] for each in turn) - max(each["came"] for each in turn)) * 1e3
        for turn in zip(*found, strict=True)
    ]
