"""The row of DeepSpeed's ZeRO-2 on processors, over our backend and over gloo.

DeepSpeed has one backend in a process, so there are two sets of ranks, and they take turns: the set
that waits does so in a read of the store's socket and takes no processor.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.collectives.gates import Gate, judged, settled
from benchmarks.table import Row
from muster_collectives.tools.bench.cases import Case, Result, decode_result
from muster_collectives.tools.bench.launch import RunError, start
from tests.support.frameworks import deepspeed_packages
from tests.support.venvs import CACHE, CHECKOUT, UnavailableError

OURS, GLOO = "muster", "gloo"
BACKENDS = (OURS, GLOO)
RANKS = 2
WHAT = "DeepSpeed ZeRO-2 step"
MIB = 1 << 20
GATES = (Gate(GLOO, OURS, 1.1, "a step"),)


def rows(rounds: int) -> Iterator[Row]:
    """Not run where the environment that test_deepspeed.py makes is not there:
    making it takes minutes."""
    try:
        if not (CACHE / "deepspeed.stamp").is_file():
            raise UnavailableError("no DeepSpeed here: run tests/collectives/pytorch/training")
        packages = deepspeed_packages()
    except UnavailableError as reason:
        yield Row(WHAT, "ms", None, {}, (), str(reason))
        return

    def measured(_: Sequence[Case]) -> list[Result]:
        return [_run(packages, rounds)]

    (result,) = settled(measured(()), lambda _: GATES, measured, 1)
    size = result.case.size_bytes / MIB
    yield judged(result, OURS, GATES, f"{WHAT}, {size:.0f} MiB of parameters, 2 ranks", "ms")


def _run(packages: Path, rounds: int) -> Result:
    """Raises RunError."""
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as name:
        folder = Path(name)
        output = folder / "result.json"
        argv = ["-m", "benchmarks.collectives.deepspeed_rank", str(rounds), str(output)]
        environ = {
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(packages)]), "DS_ACCELERATOR": "cpu",
        }  # fmt: skip
        texts = start(argv, RANKS * len(BACKENDS), folder, environ=environ)
        if not output.exists():
            raise RunError(f"no result:\n{texts[0][-2000:]}")
        return decode_result(json.loads(output.read_text()))
