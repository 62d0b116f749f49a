"""What is asked from inside a container of a job, whichever host it is; and hosts that go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until, within

Make = Callable[..., Cluster]
WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
ASK_S = 15.0


def asked_on(job: Cluster, host: str, home: Path, *argv: str) -> tuple[int, str, str]:
    """A command of `muster` as in the remote shell of a host."""
    done = subprocess.run(
        [sys.executable, "-m", "muster", *argv],
        cwd=home,
        env={**os.environ, "SAGEMAKER_BASE_DIR": str(job.base(host))},
        capture_output=True,
        text=True,
        timeout=within(ASK_S),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def answer_on(job: Cluster, host: str, home: Path, *argv: str) -> Any:
    last: list[Any] = []

    def answered() -> bool:
        last[:] = asked_on(job, host, home, *argv, "--json")
        return last[0] == 0

    wait_until(answered, ASK_S, lambda: str(last))
    return json.loads(last[1])


@pytest.mark.promise("H03")
@pytest.mark.promise("S21")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_any_host_of_a_job_answers_for_all(cluster: Make, tmp_path: Path, host: str) -> None:
    job = cluster(WAITS)
    job.start_until("here")
    rows = answer_on(job, host, tmp_path, "ps")["ranks"]
    assert [(row["host"], row["rank"]) for row in rows] == [("algo-1", 0), ("algo-2", 1)]
    found = answer_on(job, host, tmp_path, "stacks", "--all-threads")
    assert found["verdict"]["kind"] == "idle"
    assert [one["rank"] for one in found["stacks"]]
    assert job.canary not in json.dumps(found)
    code, _, err = asked_on(job, host, tmp_path, "stop")
    assert code == 0, err
    results = job.wait(30)
    assert {result.code for result in results.values()} == {143}
    left = [path for name in job.names for path in job.base(name).rglob("control")]
    assert not left


@pytest.mark.promise("H01")
def test_a_host_that_is_frozen_is_named_and_its_ranks_are_unknown(
    cluster: Make, tmp_path: Path
) -> None:
    job = cluster(WAITS, environ={"MUSTER_LOST_AFTER_S": "20"})
    job.start_until("here")
    assert len(answer_on(job, "algo-1", tmp_path, "ps")["ranks"]) == 2
    frozen = job.processes["algo-2"].pid
    os.kill(frozen, signal.SIGSTOP)
    try:
        found = answer_on(job, "algo-1", tmp_path, "stacks")
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert found["silent"] == ["algo-2"]
    assert "algo-2 did not answer" in found["verdict"]["sentence"]
    assert asked_on(job, "algo-1", tmp_path, "stop")[0] == 0
    assert {result.code for result in job.wait(30).values()} == {143}
