"""`make bench-simulated`: fits the model to two nodes, compares it with four and eight, and asks it
about many. Needs root. Writes benchmarks/results/simulated.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.collectives.links import PAYLOAD, why_not
from benchmarks.simulated.measured import (
    Run,
    fitted,
    in_node_byte_s,
    least,
    predicted,
    runs,
)  # fmt: skip
from benchmarks.simulated.network import Host, Link, seconds
from benchmarks.simulated.schedules import Schedule, Shape, doubling, ours, ring

RESULTS = Path(__file__).resolve().parents[1] / "results" / "simulated.json"
KIB, MIB = 1 << 10, 1 << 20
FIT_SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB)
TURNS = 4
STREAM_BYTES, STREAM_PIECE = MIB, 4 * KIB
MBIT_PER_S = 50  # so slow that eight nodes on two processors wait for their links
CHECKED = (4, 8)
LOCAL = 8
MANY = (32, 128, 1024)
MANY_SIZES = (64 * KIB, MIB, 25 * MIB)
MANY_GBIT_PER_S = 10
SCHEDULES: Mapping[str, Callable[[Shape, int], Schedule]] = {
    "muster": ours, "ring": ring, "recursive doubling": doubling,
}  # fmt: skip


def main() -> int:
    reason = why_not()
    if reason:
        print(f"nodes cannot be made here: {reason}", file=sys.stderr)
        return 1
    (stream,) = least(TURNS, lambda: runs(2, 0, [STREAM_BYTES], "BROADCAST", STREAM_PIECE))
    of_two = least(TURNS, lambda: runs(2, 0, FIT_SIZES))
    host = fitted(of_two, stream, in_node_byte_s())
    checked = [
        _beside(run, host)
        for nodes in CHECKED
        for run in least(2, partial(runs, nodes, MBIT_PER_S, SIZES))
    ]
    rows = many(host)
    found = {
        "host": host._asdict(),
        "stream": stream._asdict(),
        "fit": [_beside(run, host) for run in of_two],
        "checked": checked,
        "many": rows,
        "many_gbit_per_s": MANY_GBIT_PER_S,
        "ranks_of_a_node": LOCAL,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for row in (*checked, *rows):
        print(json.dumps(row))
    print(f"largest error: {max(abs(row['off']) for row in checked) * 100:.0f} %")
    return 0


def many(host: Host) -> list[dict[str, Any]]:
    """Seconds of each schedule for float32 all-reduces of many nodes."""
    link = Link(MANY_GBIT_PER_S * 1e9 / 8 * PAYLOAD)
    rows = []
    for nodes in MANY:
        for size in MANY_SIZES:
            shape = Shape(nodes, LOCAL)
            took = {
                name: seconds(made(shape, size), host, link) for name, made in SCHEDULES.items()
            }
            rows.append({"nodes": nodes, "size_bytes": size, "seconds": took})
    return rows


def _beside(run: Run, host: Host) -> dict[str, Any]:
    """A real run, and what the model says of it."""
    says = predicted(run, host)
    return {**run._asdict(), "predicted_s": says, "off": says / run.least_s - 1}


if __name__ == "__main__":
    sys.exit(main())
