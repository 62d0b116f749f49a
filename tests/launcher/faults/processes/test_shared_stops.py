"""Stops whose signal reaches every process of a host, ranks and shims too, as Slurm's does
(protocol.md, Stop)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.events import events_in
from tests.launcher.support.fixtures import REFUSING, saving
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
SHARED = {"MUSTER_STOP_HOLD_S": "2"}
LASTS_S = 3.0  # longer than an end waits for its stop
WAITS = """\
import os, time
print("pid", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
"""
SAVES, RAISES = saving(LASTS_S) + WAITS, REFUSING + WAITS


def started(job: Cluster) -> dict[str, int]:
    """The pid of each host's rank, once all run."""
    job.start()
    for name in job.names:
        job.wait_for(name, "pid ")
    return {name: int(job.text(name).partition("pid ")[2].split()[0]) for name in job.names}


def shim_of(rank: int) -> int:
    return int(Path(f"/proc/{rank}/stat").read_text().rpartition(") ")[2].split()[1])


def ended(rank: int) -> bool:
    try:
        return Path(f"/proc/{rank}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def stopped(job: Cluster, by: str) -> None:
    for name, result in job.wait().items():
        assert (result.code, result.failure) == (143, ""), job.story(name)
        assert "FAILED" not in result.err and "failed" not in result.err, result.err
    assert f"STOPPED by SIGTERM on {by}, exit code 143" in job.result("algo-1").err


@pytest.mark.parametrize("hears", ["algo-1", "algo-2"])
@pytest.mark.parametrize("dies", ["algo-1", "algo-2"])
def test_a_rank_that_dies_before_the_stop_is_heard_of_is_stopped(
    cluster: Make, hears: str, dies: str
) -> None:
    job = cluster(WAITS, environ=SHARED)
    rank = started(job)[dies]
    os.kill(rank, signal.SIGTERM)
    wait_until(lambda: ended(rank), 5)
    job.signal(hears)
    stopped(job, hears)


def test_an_error_that_the_signal_raised_is_the_stops(cluster: Make) -> None:
    """Any error: that the shim had a SIGTERM, too, shows whose it is."""
    job = cluster(RAISES, environ=SHARED)
    rank = started(job)["algo-2"]
    os.kill(shim_of(rank), signal.SIGTERM)
    os.kill(rank, signal.SIGTERM)
    wait_until(lambda: ended(rank), 5)
    job.signal("algo-1")
    stopped(job, "algo-1")


def test_ranks_that_had_the_signal_have_no_second_and_the_others_have_theirs(
    cluster: Make,
) -> None:
    """On the first host all processes have it, on the second nobody."""
    job = cluster(SAVES, environ={**SHARED, "MUSTER_STOP_GRACE_S": "20"})
    rank = started(job)["algo-1"]
    for pid in (shim_of(rank), rank):
        os.kill(pid, signal.SIGTERM)
    job.signal("algo-1")
    stopped(job, "algo-1")
    for name in job.names:
        assert job.text(name).count("saved") == 1, job.text(name)
        assert "asked 2" not in job.text(name), job.text(name)


def test_a_rank_whose_work_was_done_long_before_was_not_stopped(cluster: Make) -> None:
    hold_s = 0.2
    done = 'import os\nif os.environ["OMPI_COMM_WORLD_RANK"] == "1":\n    raise SystemExit\n'
    two = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
    environ = {"MUSTER_STOP_HOLD_S": f"{hold_s}", "MUSTER_OVERSUBSCRIBE": "1"}
    job = cluster(done + WAITS, hosts=1, hyperparameters=two, environ=environ)
    job.start_until("pid ")
    record = job.base("algo-1") / "output/data/muster"

    def has_ended() -> bool:
        return "rank_ended" in [event["kind"] for event in events_in(record)]

    wait_until(has_ended, 30, lambda: job.story("no end"))
    over = time.monotonic() + 2 * hold_s
    wait_until(lambda: time.monotonic() > over, 5)
    job.signal("algo-1")
    stopped(job, "algo-1")
    ranks = json.loads((record / "summary.json").read_text())["ranks"]
    assert [(one["rank"], one["stopped"]) for one in ranks] == [(0, True), (1, False)]


def test_a_signal_without_a_stop_is_a_failure_in_the_end(cluster: Make) -> None:
    job = cluster(WAITS, environ=SHARED)
    os.kill(started(job)["algo-2"], signal.SIGTERM)
    for result in job.wait().values():
        assert result.code == 1 and "killed by signal 15" in result.first_line, result.err


@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_where_a_stop_signals_train_alone_nothing_waits(cluster: Make, host: str) -> None:
    job = cluster(WAITS)
    rank = started(job)[host]
    os.kill(rank, signal.SIGTERM)
    job.wait_for(host, "failed", "err")
    for result in job.wait().values():
        assert result.code == 1 and "killed by signal 15" in result.first_line, result.err
