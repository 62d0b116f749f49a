"""Rows of training steps: DDP and FSDP2 over our group and over gloo's, in the same processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import Bound, Row
from muster_collectives.bench.cases import Result, decode_result
from muster_collectives.bench.launch import start

OURS, GLOO, ALONE = "muster", "gloo", "alone"
STEP_TIMES, SHARE_TIMES = 1.5, 3.0  # at 12 MiB of gradients
MIB = 1 << 20


class Share(NamedTuple):
    """How many times longer gloo's step takes, and how many times more it adds to a step alone."""

    step: float
    added: float


def ddp(rounds: int) -> Iterator[Row]:
    for result in _run("ddp", rounds):
        medians = _share(*(result.series[name].median for name in (GLOO, OURS, ALONE)))
        best = _share(*(result.series[name].best for name in (GLOO, OURS, ALONE)))
        mib = result.case.size_bytes / MIB
        step, added = max(medians.step, best.step), max(medians.added, best.added)
        bounds = (
            (Bound(f"step {STEP_TIMES:g}x faster", step >= STEP_TIMES),
             Bound(f"adds {SHARE_TIMES:g}x less to a step", added >= SHARE_TIMES))
            if round(mib) == 12 else (Bound("no slower", step >= 1),)
        )  # fmt: skip
        yield Row(
            f"DDP step, {mib:.1f} MiB of gradients, 2 ranks", "ms",
            result.series[OURS].median * 1e3,
            {name: result.series[name].median * 1e3 for name in (GLOO, ALONE)}, bounds,
            f"step {medians.step:.2f}x median, {best.step:.2f}x best; communication adds "
            f"{medians.added:.1f}x median, {best.added:.1f}x best less than gloo's",
        )  # fmt: skip


def fsdp(rounds: int) -> Iterator[Row]:
    for result in _run("fsdp", rounds):
        times = result.times(GLOO, OURS)
        assert times is not None
        yield Row(
            "FSDP2 step, two layers of 1024 x 1024, 2 ranks", "ms",
            result.series[OURS].median * 1e3, {GLOO: result.series[GLOO].median * 1e3},
            (Bound("no slower", max(times) >= 1),),
            f"{times[0]:.2f}x median, {times[1]:.2f}x best",
        )  # fmt: skip


def _share(gloo: float, ours: float, alone: float) -> Share:
    # ours may add less than the clock can tell
    return Share(gloo / ours, max(0.0, gloo - alone) / max(1e-5, ours - alone))


def _run(what: str, rounds: int) -> list[Result]:
    """Raises RunError."""
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as name:
        folder = Path(name)
        output = folder / "results.jsonl"
        argv = ["-m", "benchmarks.collectives_training_rank", what, str(rounds), str(output)]
        start(argv, 2, folder)
        return [decode_result(json.loads(line)) for line in output.read_text().splitlines()]
