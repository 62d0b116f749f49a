"""Stops of containers whose PID 1 is `train`."""

from __future__ import annotations

import calendar
import time

import pytest

from tests.launcher.support.containers import Containers, Make
from tests.launcher.support.events import events_in
from tests.support.waiting import within


def script_that(saves: str) -> str:
    """Waits for a SIGTERM and then does what it is told to."""
    return (
        "import os, signal, sys, time\n"
        "def save(number, _):\n"
        "    print('told', signal.Signals(number).name, time.time(), flush=True)\n"
        f"    {saves}\n"
        "    open('/opt/ml/checkpoints/saved', 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )


def start(job: Containers) -> None:
    """Until the ranks of all hosts run below a PID 1 that is `train`."""
    job.start_ranks()
    for name in job.names:
        first = job.inside(name, "cat", "/proc/1/cmdline").split("\0")
        assert first[1:4] == ["-m", "muster", "train"]


def saved(job: Containers, name: str) -> bool:
    return (job.base(name) / "checkpoints" / "saved").exists()


def heard_s(job: Containers, name: str) -> float:
    """When the host's `train` had a stop, as of `time`: what the engine takes is not ours."""
    events = events_in(job.base(name) / "output" / "data" / "muster")
    (heard,) = [e for e in events if e["kind"] == "phase" and e["name"] == "report"]
    return float(heard["time"])


@pytest.mark.promise("F01")
@pytest.mark.parametrize("which", ["algo-1", "algo-2"])
def test_a_stop_of_one_container_lets_the_ranks_of_all_save(containers: Make, which: str) -> None:
    job = containers(script_that("pass"))
    start(job)
    job.signal(which)
    results = job.wait(20)
    for name, result in results.items():
        told = result.out.split()
        assert told[:3] == ["ready", "told", "SIGTERM"]
        assert float(told[3]) - heard_s(job, which) < within(2)
        assert saved(job, name)
        assert (result.code, result.failure, result.success) == (143, "", False)
    assert f"STOPPED by SIGTERM on {which}, exit code 143" in results["algo-1"].err


@pytest.mark.promise("F05")
def test_a_second_stop_neither_shortens_the_time_to_save_nor_is_passed_on(
    containers: Make,
) -> None:
    """The engine stops all containers of a job, and may do so twice."""
    saves = "while not os.path.exists('/opt/ml/checkpoints/go'): time.sleep(0.02)"
    job = containers(script_that(saves), environ={"MUSTER_STOP_GRACE_S": "30"})
    start(job)
    for said, stream in (("told SIGTERM", "out"), ("SIGTERM again: the job is stopping", "err")):
        for name in job.names:
            job.signal(name)
        for name in job.names:
            job.wait_for(name, said, stream)
    job.let_go()
    for name, result in job.wait(20).items():
        assert result.out.count("told") == 1
        assert saved(job, name)
        assert (result.code, result.failure) == (143, "")


@pytest.mark.promise("F01")
def test_a_container_that_is_stopped_ends_long_before_it_would_be_killed(containers: Make) -> None:
    """`docker stop` of a script that never heard of signals."""
    job = containers("import time\nprint('ready', flush=True)\ntime.sleep(600)\n", hosts=1)
    start(job)
    began_s = time.time()
    job.stop("algo-1", killed_after_s=10)
    state = job.state("algo-1")
    assert ended_s(state["FinishedAt"]) - began_s < within(5)
    result = job.wait(10)["algo-1"]
    assert (result.code, result.failure) == (143, "")
    assert state["ExitCode"] == 143


def ended_s(finished_at: str) -> float:
    """The engine's time of a container's end (`2030-01-31T23:59:59.123456789Z`), as `time.time`."""
    whole, _, part = finished_at.removesuffix("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")
