"""A disk of one host that does not answer any more: the job ends as if it did (F53)."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster, Result
from tests.launcher.support.disks.silent_mount import silent_mount
from tests.launcher.support.sabotage import train_after
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]

WAITS = (
    "import os, time\n"
    "print('ready', flush=True)\n"
    "while not os.path.exists(os.environ['TEST_GO']):\n    time.sleep(0.02)\n"
    "if os.environ['SM_CURRENT_HOST'] == os.environ['TEST_FAILS']:\n"
    "    raise ValueError('bad batch')\n"
)
LIMITS = {"MUSTER_FINISH_S": "3"}  # half of it is for the files
ENDS_S = 20


def job_on(cluster: Make, fails: str) -> Cluster:
    job = cluster(WAITS)
    job.expect(no_status_file=True)
    job.environ |= {"TEST_GO": str(job.folder / "go"), "TEST_FAILS": fails, **LIMITS}
    return job


def all_ended(job: Cluster) -> None:
    wait_until(
        lambda: all(one.poll() is not None for one in job.processes.values()),
        ENDS_S,
        lambda: job.story("a host waits for its disk"),
    )


def outcome(cluster: Make, hung: str, fails: str) -> dict[str, Result]:
    """A job whose host `hung` loses its output disk while it runs, and how its hosts ended."""
    job = job_on(cluster, fails)
    with silent_mount(job.base(hung) / "output") as disk:
        job.start()
        for name in job.names:
            job.wait_for(name, "ready")
        disk.stop()  # the fault
        (job.folder / "go").touch()
        all_ended(job)
    results = job.wait(5)
    assert "a disk does not answer" in results[hung].err
    return results


@pytest.mark.promise("F53")
@pytest.mark.parametrize("hung", ["algo-1", "algo-2"])
def test_a_disk_that_hangs_costs_the_failure_file_and_not_the_outcome(
    cluster: Make, hung: str
) -> None:
    results = outcome(cluster, hung, "algo-2")
    other = next(name for name in results if name != hung)
    assert [result.code for result in results.values()] == [1, 1]
    assert results[other].first_line.startswith("UserScriptError: ValueError: bad batch (algo-2")
    assert "FAILED algo-2 rank 1: ValueError: bad batch" in results["algo-1"].err
    assert results["algo-1"].err.rstrip().endswith("exit code 1")


@pytest.mark.promise("F53")
def test_a_disk_that_hangs_at_the_end_of_a_good_job_fails_nobody(cluster: Make) -> None:
    results = outcome(cluster, "algo-1", "nobody")
    assert [result.code for result in results.values()] == [0, 0]
    assert "SUCCEEDED" in results["algo-1"].err


@pytest.mark.promise("F53")
def test_a_stop_ends_a_host_whose_disk_hangs_from_the_start(cluster: Make) -> None:
    job = job_on(cluster, "nobody")
    with silent_mount(job.base("algo-2") / "output") as disk:
        job.start()
        disk.stop()  # the fault, before a Python can be there
        job.wait_for("algo-2", "admitted by algo-1", stream="err")
        job.signal("algo-1", signal.SIGTERM)
        all_ended(job)
    results = job.wait(5)
    assert [result.code for result in results.values()] == [143, 143]


def plan_slowly() -> None:
    """As on a PATH whose disk is slow."""
    import time

    from muster.train.work import JobWork

    plan = JobWork.plan

    def slow(self, facts):  # type: ignore[no-untyped-def]
        time.sleep(5)
        return plan(self, facts)

    JobWork.plan = slow  # type: ignore[method-assign]


@pytest.mark.promise("F28")
@pytest.mark.parametrize("slow", ["algo-1", "algo-2"])
def test_a_host_that_plans_for_longer_than_the_limit_of_silence_is_not_lost(
    cluster: Make, slow: str
) -> None:
    job = cluster("print('ran')")  # lost after 2 s of silence
    for name in job.names:
        job.start(name, command=train_after(plan_slowly) if name == slow else None)
    results = job.wait(30)
    assert [result.code for result in results.values()] == [0, 0], results
