"""Jobs that hang, each in another way: the roll call names the rank to look at, and its line."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.launcher.support.local.asking import verdict_of
from tests.launcher.support.local.local_runs import PROCESS, LocalRun, Start
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("muster.run.observe.agent_link") is None, reason="no agents in this build"
    ),
]
START_S = 120.0  # importing torch on a busy machine
FOUND_S = 30.0
BEGIN = """\
import ctypes, os, queue, threading, time
import torch
import torch.distributed as dist
if os.environ["SM_HP_BACKEND"] == "muster":
    import muster_collectives.torch
dist.init_process_group(os.environ["SM_HP_BACKEND"])
rank, x = dist.get_rank(), torch.ones(4)
def step():
    dist.all_reduce(x)
for _ in range(3):
    step()
open(os.environ["SM_HP_READY"] + str(rank), "w").write(str(os.getpid()))
def guilty():
    while not os.path.exists(os.environ["SM_HP_READY"] + "0"):
        time.sleep(0.01)
"""
END = """
if rank == 1:
    guilty()
step()
"""


class Hang(NamedTuple):
    """What rank 1 does while the others wait for it. `line`: whether its line is to be named: the
    one that says `here`."""

    script: str
    kinds: tuple[str, ...] = ("waiting",)
    line: bool = True


HANGS = {
    "sleeps before it": Hang("    time.sleep(600)  # here\n"),
    "loops in Python": Hang("    while True: pass  # here\n", ("busy",)),
    "holds the GIL in C": Hang(  # in a call that no signal ends
        "    c, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)\n"
        "    c.pthread_mutex_lock(mutex)\n    c.pthread_mutex_lock(mutex)  # here\n"
    ),
    "is stopped": Hang("    os.kill(os.getpid(), 19)  # here\n", line=False),
    "waits for a lock": Hang(
        "    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()  # here\n"
    ),
    "waits for its loader": Hang("    queue.Queue().get()  # here\n"),
    "waits for a FIFO": Hang(
        "    path = os.environ['SM_HP_READY'] + 'pipe'\n    os.mkfifo(path)\n"
        "    open(path)  # here\n"
    ),
    "skips a call and goes on": Hang(
        "    time.sleep(0)\nif rank == 1:\n    dist.broadcast(x, 0)  # here\n    time.sleep(600)\n",
        ("mismatch",),
        False,
    ),
    "calls in another order": Hang(
        "    dist.all_gather([x.clone(), x.clone()], x)  # here\n", ("mismatch",), False
    ),
}
ALWAYS = ("sleeps before it", "holds the GIL in C", "calls in another order")
PLACES = {
    "gloo on one host": ("gloo", "--processes-per-host", "2"),
    "muster on two hosts": ("muster", "--hosts", "2"),
}


def is_short(hang: str, place: str) -> bool:
    return hang == "sleeps before it" or (place.startswith("gloo") and hang in ALWAYS)


LIVE = pytest.mark.skipif(
    find_spec("muster_collectives.binding.live") is None, reason="no call that waits is told"
)


def cases() -> list[Any]:
    """All of them; outside the long tests a few, where the difference is."""
    return [
        pytest.param(
            hang,
            place,
            id=f"{hang}, {place}",
            marks=[
                *([LIVE] if place.startswith("muster") else []),
                *([] if is_short(hang, place) else [pytest.mark.long]),
            ],
        )
        for place in PLACES
        for hang in HANGS
        if place.startswith("gloo") or "mismatch" not in HANGS[hang].kinds  # else: F42
    ]


def hanging(start: Start, home: Path, hang: Hang, place: str, **environ: str) -> LocalRun:
    backend, *options = PLACES[place]
    (home / "train.py").write_text(BEGIN + hang.script + END)
    ready = home / "ready-"
    options += ["--hyperparameter", f"backend={backend}", "--hyperparameter", f"ready={ready}"]
    options += ["--distribution", "torch_distributed"]
    run = start(home, ("train.py", *options, *PROCESS), environ=environ)

    def all_there() -> bool:
        return run.process.poll() is not None or all(
            Path(f"{ready}{rank}").exists() for rank in (0, 1)
        )

    wait_until(all_there, START_S, lambda: run.err)
    assert run.process.poll() is None, run.err
    return run


@pytest.mark.promise("H08")
@pytest.mark.parametrize(("name", "place"), cases())
def test_the_guilty_rank_and_its_line_are_named(
    name: str, place: str, start: Start, tmp_path: Path
) -> None:
    hang = HANGS[name]
    run = hanging(start, tmp_path, hang, place)
    found: dict[str, Any] = {}

    def named() -> bool:
        found.update(verdict_of(run))
        return found["kind"] in hang.kinds

    wait_until(named, FOUND_S, lambda: str(found))
    assert 1 in found["guilty"], found
    if hang.line:
        lines = (tmp_path / "train.py").read_text().splitlines()
        (line,) = [number for number, text in enumerate(lines, 1) if text.endswith("# here")]
        assert f"train.py:{line}" in found["sentence"], found
    pid = int((tmp_path / "ready-1").read_text())
    if name == "is stopped":
        os.kill(pid, signal.SIGCONT)
    run.signal(signal.SIGTERM)
    assert run.wait().code == 143


@pytest.mark.promise("H06")
def test_a_wait_in_a_collective_ends_the_job_where_that_is_asked_for(
    start: Start, tmp_path: Path
) -> None:
    hang = HANGS["sleeps before it"]
    run = hanging(start, tmp_path, hang, "gloo on one host", MUSTER_HANG_S="3")
    result = run.wait()
    assert result.code == 103, result.err
    failure = (run.base("algo-1") / "output" / "failure").read_text()
    assert failure.startswith("HangError: rank 0 waits in all_reduce no. 4 of world (train.py:")
    assert "rank 1 is at train.py:" in failure


HEALTHY = """\
for number in range(60):
    time.sleep(0.02)
    step()
if rank == 0:
    end = time.monotonic() + 4  # an evaluation that the others wait for
    while time.monotonic() < end:
        pass
step()
dist.destroy_process_group()
"""


@pytest.mark.promise("H07")
@pytest.mark.parametrize("place", PLACES)
def test_a_healthy_job_crosses_the_limits_and_ends_well(
    place: str, start: Start, tmp_path: Path
) -> None:
    """A rank that works while the others wait for longer than every limit."""
    limits = {"MUSTER_STALL_WAIT_S": "1", "MUSTER_STALL_IDLE_S": "1", "MUSTER_HANG_S": "1"}
    backend, *options = PLACES[place]
    (tmp_path / "train.py").write_text(BEGIN.replace("guilty", "unused") + HEALTHY)
    options += ["--hyperparameter", f"backend={backend}", "--distribution", "torch_distributed"]
    options += ["--hyperparameter", f"ready={tmp_path / 'ready-'}"]
    result = start(tmp_path, ("train.py", *options, *PROCESS), environ=limits).wait(START_S)
    assert result.code == 0, result.err
    assert "HangError" not in result.err
