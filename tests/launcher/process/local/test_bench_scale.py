"""`muster bench scale` with real jobs, whose steps sleep a known serial and a parallel part."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERIAL_S, PARALLEL_S, SAMPLES, STEPS = 0.03, 0.09, 64, 24
SCRIPT = f"""\
import json, os, sys, time
import muster

ranks = len(json.loads(os.environ["SM_HOSTS"]))
strong = sys.argv[1] == "strong"
cost_s = {SERIAL_S} + {PARALLEL_S} / ranks if strong else {PARALLEL_S} + {SERIAL_S} * (ranks - 1)
data_s = 0.0
due = time.monotonic()
for step in range(1, {STEPS} + 1):
    due += cost_s  # a step that the machine made late does not delay those after it
    time.sleep(max(0.0, due - time.monotonic()))
    data_s += 0.0 if strong else {SERIAL_S} * (ranks - 1)
    muster.metrics(step=step, samples=step * {SAMPLES} // (ranks if strong else 1), data_s=data_s)
"""


def argv_of(folder: Path, *words: str) -> list[str]:
    (folder / "source").mkdir()
    (folder / "source" / "train.py").write_text(SCRIPT)
    return [sys.executable, "-m", "muster", "bench", "scale", "source/train.py", *words]


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = argv_of(folder, *words)
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_the_efficiency_of_known_costs_is_predicted(tmp_path: Path, kind: str) -> None:
    words = ["--ranks", "1,2,4", "--repeat", "1", "--json", "--oversubscribe"]
    done = bench(tmp_path, *words, "--", "--isolation", "process", "--", kind)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["kind"], found["base"]) == (kind, 1)
    for one in found["sizes"]:
        n = one["ranks"]
        cost_s = SERIAL_S + PARALLEL_S / n if kind == "strong" else PARALLEL_S + SERIAL_S * (n - 1)
        ideal_s = (SERIAL_S + PARALLEL_S) / n if kind == "strong" else PARALLEL_S
        assert one["efficiency"] == pytest.approx(ideal_s / cost_s, rel=0.03)
        if kind == "weak":
            assert one["loss"]["data"] == pytest.approx(1 - ideal_s / cost_s, abs=0.03)
        assert one["loss"]["waiting"] is None or n == 1


def test_a_size_that_fails_is_left_out_and_its_code_returned(tmp_path: Path) -> None:
    words = ["--ranks", "1,2", "--repeat", "1", "-o", "x.html"]
    done = bench(tmp_path, *words, "--", "--isolation", "process")  # no argument: IndexError
    assert done.returncode == 2
    assert "none of the runs can be used" in done.stderr
    assert "IndexError" in done.stderr
    assert "Traceback (most recent call last):\n  File" not in done.stderr.partition("none of")[2]


def test_ctrl_c_ends_the_run_and_keeps_those_before_it(tmp_path: Path) -> None:
    words = ["--ranks", "1,2", "-o", "x.html", "--", "--isolation", "process", "--", "weak"]
    with subprocess.Popen(
        argv_of(tmp_path, *words), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "run 3 of 4" in line:
                break
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted: the page is of 2 runs" in said
    assert "It was interrupted after 2 of 4 runs." in (tmp_path / "x.html").read_text()
