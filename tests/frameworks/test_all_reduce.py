"""The bandwidth check of docs/how-to/images/accelerators.md, without GPUs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "all_reduce.py"


def test_two_ranks_measure_each_size_once_and_check_their_sums() -> None:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*argv, str(SCRIPT), "--largest", str(4 << 20)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"bytes=(\d+) ranks=2 time_us=(\d+) bus_GB_per_s=([\d.]+)", done.stdout)
    assert [int(size) for size, _, _ in found] == [1 << 20, 4 << 20]
    for size, took_us, bus in found:
        assert float(bus) == pytest.approx(int(size) / (int(took_us) * 1e3), rel=0.1, abs=0.02)
