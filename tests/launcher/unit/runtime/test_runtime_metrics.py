"""`muster.metrics`: its line, its file, and that neither ever stops a script."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from muster.run.observe.rank_figures import steps_in
from muster.runtime import metrics as module

LIMIT = 16 << 10
Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a script as a rank of a job with a record below tmp_path; stdout and stderr."""

    def start(script: str, limit: int = LIMIT, **variables: str) -> tuple[str, str]:
        facts = {"ranks": [0], "metrics": str(tmp_path / "rec" / "algo-1" / "metrics")}
        path = tmp_path / "facts.json"
        path.write_text(json.dumps({**facts, "metrics_bytes": limit}))
        environ = {**os.environ, "RUN_FACTS": str(path), **variables}
        made = subprocess.run(
            [sys.executable, "-c", f"import muster\n{script}"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert made.returncode == 0, made.stderr
        return made.stdout, made.stderr

    return start


def entries(tmp_path: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = tmp_path / "rec" / "algo-1" / "metrics" / f"rank-{rank}.jsonl"

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_a_call_is_one_line_and_one_entry(tmp_path: Path, run: Run) -> None:
    out, _ = run(
        "muster.metrics(step=10, samples=640, loss=0.25, lr=1e-05)\n"
        "muster.metrics(loss=float('nan'), high=float('inf'), low=-float('inf'), n=True)\n"
    )
    assert out == (
        "muster metrics step=10 samples=640 loss=0.25 lr=1e-05\n"
        "muster metrics loss=nan high=inf low=-inf n=1\n"
    )
    first, second = entries(tmp_path)
    assert abs(first.pop("time") - time.time()) < 60
    values = {"loss": 0.25, "lr": 1e-05}
    assert first == {"schema": 1, "step": 10, "samples": 640, "values": values}
    assert second["values"] == {"loss": "NaN", "high": "Infinity", "low": "-Infinity", "n": 1}
    assert math.isnan(float(second["values"]["loss"]))
    assert (tmp_path / "rec" / "algo-1").stat().st_mode & 0o777 == 0o700


def test_other_ranks_keep_an_entry_and_print_nothing(tmp_path: Path, run: Run) -> None:
    out, _ = run("muster.metrics(step=1, loss=2)", RANK="3", LOCAL_RANK="1")
    assert out == ""
    assert entries(tmp_path, 3)[0]["values"] == {"loss": 2}


def test_without_a_job_the_line_is_printed_and_nothing_is_kept(tmp_path: Path, run: Run) -> None:
    script = f"import os\nos.chdir({str(tmp_path)!r})\nmuster.metrics(step=1, loss=2)"
    assert run(script, RUN_FACTS="")[0] == "muster metrics step=1 loss=2\n"
    assert run(script, RUN_FACTS="/nowhere/at/all")[0] == "muster metrics step=1 loss=2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.promise("B56")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "nothing was given"),
        ({"step": -1}, "count steps from 0"),
        ({"step": 1.5}, r"step is a float: .*int\(step\)"),
        ({"step": "3"}, "step is a str"),
        ({"samples": -2}, "pass 0 or more"),
        ({"samples": math.nan}, "pass 0 or more"),
        ({"loss": "0.5"}, r"loss is a str and no number: .*float\(value\)"),
        ({"loss": None}, "loss is a NoneType"),
        ({"loss": [1.0, 2.0]}, "mean"),
        ({"loss": 1j}, "complex"),
        ({"val/loss": 1.0}, "name it val_loss"),
        ({"1st": 1.0}, "name it m_1st"),
        ({"größe": 1.0}, "name it gr__e"),
        ({"": 1.0}, "name it m_"),
        ({"a b\n": 1.0}, "name it a_b_"),
    ],
)
def test_what_is_no_metric_is_refused_with_the_fix(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"muster.metrics: .*{words}"):
        module.metrics(**given)


def test_what_float_and_index_take_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    class Tensor:
        def __init__(self, value: float) -> None:
            self.value = value

        def __float__(self) -> float:
            return self.value

    module.metrics(loss=Tensor(0.5), share=Fraction(1, 4), large=10**30, n=7)
    line = capsys.readouterr().out
    assert line == "muster metrics loss=0.5 share=0.25 large=1e+30 n=7\n"


def test_a_file_is_bounded_thinned_and_says_so(tmp_path: Path, run: Run) -> None:
    run("for n in range(20000): muster.metrics(step=n, loss=n / 3)")
    kept = entries(tmp_path)
    path = tmp_path / "rec" / "algo-1" / "metrics" / "rank-0.jsonl"
    assert LIMIT // 2 < path.stat().st_size <= LIMIT
    assert [entry["step"] for entry in kept[:50]] == list(range(50))
    assert 20000 - kept[-1]["step"] <= 4 * kept[-1]["every"]
    gaps = [after["step"] - before["step"] for before, after in pairwise(kept)]
    assert all(gap <= entry.get("every", 1) for gap, entry in zip(gaps, kept[1:], strict=True))
    step, rate = steps_in(str(path))
    assert step == kept[-1]["step"]
    assert rate is not None


def test_a_child_does_not_wait_for_a_thread_that_printed_at_the_fork(run: Run) -> None:
    """Under plain Python: the output of ranks has no buffer, and so no lock."""
    script = """
import io, os, sys, threading
muster.metrics(step=2)
holds, go = threading.Event(), threading.Event()
class Slow(io.FileIO):
    def write(self, data):
        holds.set()
        go.wait()
        return super().write(data)
sys.stdout = io.TextIOWrapper(io.BufferedWriter(Slow(1, "w", closefd=False)), write_through=True)
thread = threading.Thread(target=lambda: print("held", flush=True))
thread.start()
holds.wait()
pid = os.fork()
if pid == 0:
    muster.metrics(step=3)
    os._exit(0)
os.waitpid(pid, 0)
go.set()
thread.join()
"""
    out, _ = run(script)
    assert out.splitlines() == ["muster metrics step=2", "muster metrics step=3", "held"]


def test_threads_forks_and_other_processes_share_the_file(tmp_path: Path, run: Run) -> None:
    script = """
import os, subprocess, sys, threading
import muster.runtime.metrics as reporting
reporting.SLOW_S = 60  # a write that waits for a processor is not a slow disk's
muster.metrics(step=0)
def some():
    for n in range(50):
        muster.metrics(step=n, loss=1)
threads = [threading.Thread(target=some) for _ in range(4)]
[one.start() for one in threads]
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        some()
        os._exit(0)
    children.append(pid)
subprocess.run([sys.executable, "-c", "import muster; muster.metrics(step=99)"], check=True)
[one.join() for one in threads]
[os.waitpid(pid, 0) for pid in children]
"""
    out, _ = run(script, limit=1 << 20)
    assert len(entries(tmp_path)) == 1 + 7 * 50 + 1
    assert all(line.startswith("muster metrics step=") for line in out.splitlines())


def test_a_line_that_was_cut_stays_alone(tmp_path: Path, run: Run) -> None:
    run("muster.metrics(step=1)")
    path = tmp_path / "rec" / "algo-1" / "metrics" / "rank-0.jsonl"
    with path.open("a") as file:
        file.write('{"schema": 1, "ti')
    run("muster.metrics(step=2)")
    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in (lines[0], lines[2])] == [1, 2]
    assert steps_in(str(path))[0] == 2


def test_steps_of_an_earlier_start_are_not_those_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    steps = [*range(1, 6), *range(1, 4)]
    times = [*range(100, 105), *range(200, 203)]
    lines = [json.dumps({"time": t, "step": s}) for t, s in zip(times, steps, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    assert steps_in(str(path), 150.0) == (3, 1.0)
    assert steps_in(str(path), 250.0) == (None, None)


@pytest.mark.parametrize(
    "before",
    [
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout = type('', (), {'write': None, 'flush': lambda self: 0})()",
        "import os; os.close(1)",
        "import os; os.closerange(3, 64)",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        "muster.metrics; import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    ],
)
def test_neither_stdout_nor_disk_ever_stops_the_script(run: Run, before: str) -> None:
    _, errors = run(f"{before}\nmuster.metrics(step=1, loss=2)\nmuster.metrics(step=2, loss=2)")
    assert "Traceback" not in errors


def test_a_record_that_cannot_be_made_is_left_out(tmp_path: Path, run: Run) -> None:
    (tmp_path / "rec").write_text("a file where the record should be")
    assert run("muster.metrics(step=1)")[0] == "muster metrics step=1\n"


def test_a_descriptor_that_became_another_file_is_not_written_to(tmp_path: Path, run: Run) -> None:
    other = tmp_path / "own.txt"
    run(
        "import os\nmuster.metrics(step=1)\nos.closerange(3, 64)\n"
        f"files = [open({str(other)!r}, 'a') for _ in range(8)]\n"
        "muster.metrics(step=2)"
    )
    assert other.read_text() == ""
    assert [entry["step"] for entry in entries(tmp_path)] == [1, 2]


def test_a_full_disk_is_said_in_the_next_entry(tmp_path: Path) -> None:
    file = module._File(str(tmp_path / "rec" / "h" / "metrics" / "rank-0.jsonl"), LIMIT)
    (tmp_path / "rec").write_text("")
    file.append('"step": 1')
    file.append('"step": 2')
    (tmp_path / "rec").unlink()
    file._not_before = 0.0
    file.append('"step": 3')
    (entry,) = (tmp_path / "rec" / "h" / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert json.loads(entry)["lost"] == 2


def test_a_slow_disk_is_not_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = module._File(str(tmp_path / "rec" / "h" / "metrics" / "rank-0.jsonl"), LIMIT)
    clock = iter([0.0, 0.2, 10.0, 25.0, 25.1])
    monkeypatch.setattr("muster.runtime.metrics.time.monotonic", lambda: next(clock))
    for step in range(3):
        file.append(f'"step": {step}')
    lines = (tmp_path / "rec" / "h" / "metrics" / "rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line).get("lost") for line in lines] == [None, 1]


def test_progress_is_the_last_step_and_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = module._Reporter()
    reporter._prints, reporter._file = False, module._File("", 0)
    clock = [0.0]
    monkeypatch.setattr("muster.runtime.metrics.time.monotonic", lambda: clock[0])
    assert reporter.progress() is None
    reporter.report(None, "", "")
    assert reporter.progress() is None
    for n in range(1000):
        clock[0] = n / 4
        reporter.report(n, "", "")
    assert reporter.progress() == (999, 4.0)
    reporter.report(0, "", "")  # the next epoch
    assert reporter.progress() == (0, None)


def test_progress_may_be_asked_while_another_thread_reports() -> None:
    reporter = module._Reporter()
    reporter._prints, reporter._file = False, module._File("", 0)
    over = threading.Event()

    def report() -> None:
        n = 0
        while not over.is_set():
            n = (n + 1) % 50
            reporter.report(n, "", "")

    thread = threading.Thread(target=report)
    thread.start()
    try:
        for _ in range(20000):
            reporter.progress()
    finally:
        over.set()
        thread.join()
