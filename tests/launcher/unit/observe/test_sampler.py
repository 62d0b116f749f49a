"""Samples of real process trees: what they cost, what they hold, and that they stop nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster.run.channel.digest import HostDigest, RankFigures
from muster.run.observe.rank_figures import digest_of, steps_in
from muster.run.observe.sampler import Sample, Sampler, Subject, look
from muster.stage.machine.cgroup import Cgroups
from tests.support.waiting import wait_until

FIELDS = {
    "pid", "cpu_s", "run_delay_s", "memory_bytes", "state", "wchan", "silent_s", "throttled_s",
    "steal_s", "major_faults",
}  # fmt: skip
# As a rank: it starts a child that works and lets it end, holds memory, then sleeps.
WORKS = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.run([sys.executable, "-c", burn])
held = bytearray(48 << 20)
print("ready", flush=True)
time.sleep(600)
"""


class Events:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, kind: str, rank: int | None = None, **fields: object) -> None:
        self.seen.append({"kind": kind, "rank": rank, **fields})


def test_a_sample_holds_the_whole_tree_of_a_rank_and_what_has_ended_of_it() -> None:
    events = Events()
    with subprocess.Popen([sys.executable, "-c", WORKS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        heard_s = time.monotonic() - 7
        subject = Subject(3, process.pid, 0, heard_s)
        sampler = Sampler(lambda: [subject], events, lambda: 2.5, every_s=0.05, first_s=0.05)
        sampler.begin()
        wait_until(lambda: len(events.seen) >= 2, 20)
        sampler.end()
        process.kill()
    first = events.seen[0]
    assert first["kind"] == "sample"
    assert first["rank"] == 3
    assert set(first) == FIELDS | {"kind", "rank"}
    assert first["cpu_s"] >= 0.45
    assert first["memory_bytes"] > 48 << 20
    assert first["state"] == "S"
    assert 7 <= first["silent_s"] < 60
    assert first["throttled_s"] == 0  # since the first look
    assert sampler.peak_bytes[3] >= first["memory_bytes"]
    assert sampler.problem == ""
    seen = RankFigures(3, sampler.last[3].cpu_s, sampler.peak_bytes[3], None, None, 1.5)
    assert digest_of([3, 4], sampler, "", {3: 1.5}) == HostDigest((seen, RankFigures(4)))


def test_what_a_shim_waited_for_still_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    shim = f"import os, sys, subprocess\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    events = Events()
    words = [sys.executable, "-c", shim]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        sampler = Sampler(lambda: [Subject(0, 2**22 + 1, process.pid, 0.0)], events)

        def used() -> bool:
            sampler.sample()
            return sampler.last[0].cpu_s >= 0.35

        wait_until(used, 30)
        assert sampler.last[0].state == ""  # the rank itself is gone
        process.kill()


def test_what_a_rank_used_after_its_last_sample_is_in_its_figures(tmp_path: Path) -> None:
    """Its shim knows, which is still there."""
    burn = "import sys, time\nsys.stdin.read()\nwhile time.process_time() < 0.4: pass"
    shim = (
        "import subprocess, sys\n"
        f"made = subprocess.Popen([sys.executable, '-c', {burn!r}], stdin=subprocess.PIPE)\n"
        "print(made.pid, flush=True)\nsys.stdin.readline()\nmade.communicate()\n"
        "print('ended', flush=True)\nsys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", shim], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        subjects = [Subject(0, int(process.stdout.readline()), process.pid, 0.0)]
        sampler = Sampler(lambda: list(subjects), Events(), every_s=600, first_s=0.0)
        sampler.begin()
        wait_until(lambda: 0 in sampler.last, 20)
        assert sampler.last[0].cpu_s < 0.3
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        subjects.clear()
        sampler.end()
        assert sampler.last[0].cpu_s >= 0.35
        process.kill()


def test_a_short_job_is_not_looked_at() -> None:
    asked = []
    sampler = Sampler(lambda: asked.append(1) or [], Events())
    began_s = time.monotonic()
    sampler.begin()
    sampler.end()
    assert time.monotonic() - began_s < 0.4
    assert asked == []


def test_a_defect_or_a_lack_of_threads_ends_the_samples_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> list[Subject]:
        raise ValueError("no")

    sampler = Sampler(broken, Events(), first_s=0.0)
    sampler.begin()
    wait_until(lambda: bool(sampler.problem), 10)
    assert sampler.problem == "ValueError: no"
    sampler.end()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    lonely = Sampler(list, Events())
    lonely.begin()
    lonely.end()
    assert lonely.problem == "can't start new thread"


def _clock_of(pid: int) -> int:
    """The clock of the processor time of a process, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def test_a_fresh_look_tells_who_works_from_who_waits() -> None:
    scripts = ["while True: pass", "import time; time.sleep(600)"]
    made = [subprocess.Popen([sys.executable, "-c", script]) for script in scripts]
    try:
        subjects = [Subject(rank, one.pid, 0, 0.0) for rank, one in enumerate(made)]
        subjects.append(Subject(2, 2**22 + 1, 0, 0.0))

        def told() -> bool:
            # a busy process has only what others leave it: over a second, and beside what the
            # kernel's own clock of that process says
            began, used = time.monotonic(), time.clock_gettime(_clock_of(made[0].pid))
            seen = look(subjects, 1.0)
            used = time.clock_gettime(_clock_of(made[0].pid)) - used
            quiet = seen[1].cpu_share == 0 and seen[1].waits_for == "sleeping"
            told_s = seen[0].cpu_share * (time.monotonic() - began)
            busy = told_s > 0.02 and told_s == pytest.approx(used, rel=0.2, abs=0.04)
            return quiet and busy and seen[2].state == ""

        wait_until(told, 60)
    finally:
        for one in made:
            one.kill()
            one.wait()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("usage_usec 5\nnr_throttled 3\nthrottled_usec 1500000\n", 1.5),
        ("nr_periods 10\nnr_throttled 2\nthrottled_time 2500000000\n", 2.5),
        ("nr_throttled 1\n", None),
    ],
)
def test_throttling_is_read_of_both_versions(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    (tmp_path / "cpu" / "job" / "cpu.stat").write_text(text)
    membership = tmp_path / "membership"
    membership.write_text("3:cpu,cpuacct:/job\n")
    assert Cgroups(str(tmp_path), str(membership)).throttled_s() == seconds


def test_steps_and_their_rate_are_read_of_files_of_any_state(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    assert steps_in(str(path)) == (None, None)
    lines = [f'{{"time": {100 + n / 2}, "step": {n}}}' for n in range(20)]
    path.write_text("\n".join(lines) + '\n{"time": 1, "st')
    assert steps_in(str(path)) == (19, 2.0)
    path.write_text('{"time": 5, "step": 3}\n{"time": "x", "step": 4}\n[1]\n\xff\n')
    assert steps_in(str(path)) == (3, None)
    fifo = tmp_path / "rank-1.jsonl"
    os.mkfifo(fifo)
    assert steps_in(str(fifo)) == (None, None)
    sampler = Sampler(list, Events())
    sampler.last[0] = Sample(1, 2.0, 0.0, 5, "S", "", 0.0, None, 0.0)
    assert digest_of([0], sampler, str(tmp_path)).ranks == (RankFigures(0, 2.0, None, 3),)
