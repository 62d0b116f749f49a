"""What `muster.metrics` costs a script, and the file of facts a job."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row, under
from muster.contract.request.read import read_job
from muster.plan.launchplan import Command, LaunchPlan, RankSlot
from muster.train.run_facts import write_facts
from tests.support.mltree import write_tree

CALLS = 20_000
ROUNDS = 7
BOUND_US = 20.0
FACTS_BOUND_US = 500.0
_SCRIPT = f"""\
import sys, time
import muster
muster.metrics(step=0, samples=0, loss=1.0, accuracy=0.5)
began = time.perf_counter()
for step in range({CALLS}):
    muster.metrics(step=step, samples=step * 64, loss=1 / (step + 1), accuracy=0.5)
sys.stderr.write(str((time.perf_counter() - began) / {CALLS} * 1e6))
"""


def rows(folder: Path) -> Iterator[Row]:
    folder.mkdir(exist_ok=True)
    printing = [_call_us(folder / f"first-{n}", rank=0) for n in range(ROUNDS)]
    keeping = [_call_us(folder / f"other-{n}", rank=1) for n in range(ROUNDS)]
    yield Row(
        "`muster.metrics` on rank 0, which prints and keeps: one call",
        "us",
        min(printing),
        {},
        (under(min(printing), BOUND_US, "us"),),
        f"best of {ROUNDS} scripts with {CALLS:,} calls of four values, stdout a pipe that is "
        f"read (median {statistics.median(printing):.1f}); other ranks, which only keep: "
        f"{min(keeping):.1f} us (median {statistics.median(keeping):.1f})",
    )
    facts = [_facts_us(folder / f"facts-{n}") for n in range(ROUNDS * 10)]
    yield Row(
        "the file of facts of a job",
        "us",
        statistics.median(facts),
        {},
        (under(statistics.median(facts), FACTS_BOUND_US, "us"),),
        f"median of {len(facts)}, on the thread that plans",
    )


def _call_us(folder: Path, rank: int) -> float:
    folder.mkdir()
    facts = {"ranks": [0, 1], "metrics": str(folder / "record" / "algo-1" / "metrics")}
    (folder / "facts.json").write_text(json.dumps({**facts, "metrics_bytes": 8 << 20}))
    environ = {**os.environ, "RUN_FACTS": str(folder / "facts.json"), "PYTHONUNBUFFERED": "1"}
    made = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**environ, "RANK": str(rank)},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return float(made.stderr)


def _facts_us(folder: Path) -> float:
    folder.mkdir()
    job = read_job(write_tree(folder))
    script = Command(("python",), {}, "/")
    plan = LaunchPlan("single", 1, (RankSlot(0, 0, 0),), 0, "localhost", {}, script, True, ())
    began_s = time.perf_counter()
    assert write_facts(job, plan, time.time(), str(folder), str(folder))
    return (time.perf_counter() - began_s) * 1e6
