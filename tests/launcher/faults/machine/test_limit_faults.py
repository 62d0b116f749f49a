"""Limits of processes, for a user without rights (F16)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.fixtures import checked
from tests.launcher.support.local.unprivileged import (
    home_of_nobody,
    packages_for_nobody,
    readable_python,
)

AS_NOBODY = ("--clear-groups", "--bounding-set=-all", "--no-new-privs")


@pytest.fixture
def as_nobody() -> Iterator[Callable[[str], Cluster]]:
    """Makes one-host clusters in a folder that every user may enter; checks them after the test."""
    if os.getuid() != 0:
        pytest.skip("only root may become another user")
    made: list[Cluster] = []
    environ = {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    environ["PYTHONPATH"] = packages_for_nobody()
    with home_of_nobody(lambda home: None) as home, checked(made):

        def make(script: str) -> Cluster:
            made.append(Cluster(home / f"cluster-{len(made)}", script, 1, environ=environ))
            return made[-1]

        yield make


def fresh_uid() -> int:
    """A user who runs nothing else: the kernel counts all processes of one user."""
    return 20_000 + secrets.randbelow(40_000)


def start_limited(job: Cluster, uid: int, processes: int) -> None:
    """Starts `train` as the user, who may have so many processes and threads in all."""
    for path in [job.folder, *job.folder.rglob("*")]:
        os.chown(path, uid, uid)
    limit = ["prlimit", f"--nproc={processes}:{processes}"]
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", *AS_NOBODY]
    job.start(command=[*limit, *user, readable_python(), "-m", "muster", "train"])


@pytest.mark.promise("F16")
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_a_limit_of_processes_is_named(as_nobody: Callable[[str], Cluster], processes: int) -> None:
    """The kernel counts threads too: whatever cannot be started, the error says why."""
    job = as_nobody("print('ran')")
    start_limited(job, fresh_uid(), processes)
    result = job.wait(20)["algo-1"]
    assert result.out == ""  # the fault: nothing could run
    assert result.code == 106, result.err
    assert "the limit of processes is reached" in result.first_line


@pytest.mark.promise("F16")
def test_a_limit_that_is_reached_at_any_moment_hangs_no_job(
    as_nobody: Callable[[str], Cluster],
) -> None:
    """Jobs of one user take each other's processes away, each at another place of its way."""
    uid = fresh_uid()
    jobs = [as_nobody("print('ran')") for _ in range(18)]
    for begin in range(0, len(jobs), 6):
        batch = jobs[begin : begin + 6]
        for number, job in enumerate(batch):
            start_limited(job, uid, 7 + number)
        results = [job.wait(20)["algo-1"] for job in batch]
        # 126: setpriv itself could not start anything
        assert {result.code for result in results} <= {0, 106, 126}, results
        for result in results:
            if result.code == 106:
                assert "the limit of processes is reached" in result.first_line
    assert any(job.result("algo-1").code == 106 for job in jobs)  # the fault
