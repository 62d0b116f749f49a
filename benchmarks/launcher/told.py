"""How soon the ranks of all hosts are told of the first failure on one of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.launcher.software import INCUMBENT
from benchmarks.launcher.trio import trio
from benchmarks.table import Row, under

TIMES = 30
MEDIAN_S, WORST_S = 1.0, 2.0
_WHERE = "algo-2"
_LIMIT_S = 30.0
_CODE = 7


def rows(folder: Path) -> Iterator[Row]:
    found = [_once(folder / f"told-{number}") for number in range(TIMES)]
    median = statistics.median(found)
    yield Row(
        "first failure on host 2 of 3 until the ranks of all hosts are told",
        "s",
        median,
        {INCUMBENT: "never"},
        (
            under(median, MEDIAN_S, "s", "median"),
            under(max(found), WORST_S, "s", f"worst of {len(found)}"),
        ),
        f"{len(found)} jobs: best {min(found):.3f}, median {median:.3f}, worst {max(found):.3f} s "
        "from the moment before exit(7) to SIGTERM in the last of the other ranks; the peer's "
        "`train` processes do not speak with each other: where no mpirun does, the host ends alone",
    )


def _once(folder: Path) -> float:
    """Seconds. Raises RuntimeError when the hosts do not end with the rank's code."""
    with trio(folder) as job:
        took_s = job.fail(_WHERE, _LIMIT_S)
        codes = {name: result.code for name, result in job.cluster.wait().items()}
    if set(codes.values()) != {_CODE}:
        raise RuntimeError(f"the hosts ended with {codes}")
    return took_s
