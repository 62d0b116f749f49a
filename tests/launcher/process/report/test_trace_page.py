"""The trace of `muster trace` in Perfetto's own page: its engine counts what the file holds, and
has nothing to complain about."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.support.generated_records import Made, write_record
from tests.launcher.support.generated_traces import profile, write_calls
from tests.support.browser import ask_perfetto

STALL = "ranks 0, 2, 3 wait in all_reduce no. 6 of world (train.py:41) since 38 s"
HOSTILE = "</script><img src=x onerror='window.hostile=1'>\u2028\x1b[31m"
SLICES = "select count(*), sum(dur) from slice"
FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def muster(folder: Path, *words: str) -> None:
    argv = [sys.executable, "-m", "muster", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, timeout=90)
    assert done.returncode == 0, done.stderr


def events(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    return found


def check_in_perfetto(trace: Path, name: str) -> list[str]:
    """Returns the names of its threads."""
    written = events(trace)
    slices = [one for one in written if one["ph"] in "Xi"]
    values = sum(len(one["args"]) for one in written if one["ph"] == "C")
    lasted_ns = sum(round(one.get("dur", 0) * 1000) for one in slices)
    counted, faults, counters, threads = ask_perfetto(
        trace, name, SLICES, FAULTS, "select count(*) from counter", "select name from thread"
    )
    assert counted == [[len(slices), lasted_ns]]
    assert faults == []
    assert counters == [[values]]
    return [str(row[0]) for row in threads]


@pytest.mark.dev
def test_perfetto_reads_all_that_the_trace_of_a_record_holds(tmp_path: Path) -> None:
    record = tmp_path / "run"
    write_record(str(record), Made(fails=1, stall=STALL, error=HOSTILE, nan_from=120))
    write_calls(record / "algo-1" / "collectives")
    prof = record / "algo-2" / "opt/ml/output/data/a.pt.trace.json"
    prof.parent.mkdir(parents=True)
    prof.write_text(json.dumps(profile(rank=2)))
    muster(tmp_path, "trace", "run", "-o", "t.json")
    threads = check_in_perfetto(tmp_path / "t.json", "trace")
    for name in ("rank 3", "standstill", "rank 0 calls of world", "rank 2 thread 7 (python)"):
        assert name in threads


@pytest.mark.torch
@pytest.mark.slow
def test_profiles_of_torch_lie_within_the_time_of_their_rank(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import os, muster, torch\n"
        "import torch.distributed as dist\n"
        "from torch.profiler import profile, tensorboard_trace_handler\n"
        "dist.init_process_group('gloo')\n"
        "out = os.environ['SM_OUTPUT_DATA_DIR'] + '/profiles'\n"
        "write = tensorboard_trace_handler(out, use_gzip=dist.get_rank() == 1)\n"
        "with profile(on_trace_ready=write):\n"
        "    for step in range(3):\n"
        "        dist.all_reduce(torch.ones(9))\n"
        "        muster.metrics(step=step, loss=1 / (step + 1))\n"
    )
    words = "--hosts 2 --processes-per-host 1 --distribution torch_distributed --output ../run"
    muster(tmp_path / "code", "local", "train.py", *words.split())
    muster(tmp_path, "trace", "run", "-o", "t.json")
    found = events(tmp_path / "t.json")
    names = {one["tid"]: one["args"]["name"] for one in found if one["name"] == "thread_name"}
    for rank in (0, 1):
        [ran] = [one for one in found if one["name"] == f"rank {rank} exit 0"]
        sums = [one for one in found if one["name"] == "c10d::allreduce_"
                and names[one["tid"]].startswith(f"rank {rank} ")]  # fmt: skip
        steps = [one for one in found if one["name"] in ("step 1", "step 2")
                 and names[one["tid"]] == f"rank {rank}"]  # fmt: skip
        assert (len(sums), len(steps)) == (3, 2)
        for one in (*sums, *steps):
            assert one["pid"] == ran["pid"]
            assert ran["ts"] <= one["ts"] <= one["ts"] + one["dur"] <= ran["ts"] + ran["dur"]
        # the second sum is a part of step 1, in spite of the two clocks; 5 ms for their precision
        assert steps[0]["ts"] - 5_000 <= sums[1]["ts"]
        assert sums[1]["ts"] + sums[1]["dur"] <= steps[0]["ts"] + steps[0]["dur"] + 5_000
    check_in_perfetto(tmp_path / "t.json", "trace-torch")
