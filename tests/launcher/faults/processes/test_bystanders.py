"""Ranks that ignore SIGTERM when another host failed: the others still end in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.launcher.support.cluster import Cluster, Result
from tests.support.waiting import within

Make = Callable[..., Cluster]
GRACE_S = 2.0
MORE_S = 10.0  # to kill, to gather and to write, after the grace; on a busy machine
SCRIPT = (
    "import os, signal, sys, time\n"
    "if os.environ['SM_CURRENT_HOST'] == 'algo-1':\n"
    "    signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"
    "print('ready', flush=True)\n"
    "until = time.monotonic() + 600\n"
    "while not os.path.exists('go') and time.monotonic() < until:\n    time.sleep(0.01)\n"
    "sys.exit(42)\n"
)


def fail_beside_one_that_ignores(
    job: Cluster, fail: Callable[[Cluster], object]
) -> dict[str, Result]:
    """The results once `fail` broke algo-2 and the rank of algo-1 was told to stop and did not."""
    job.environ |= {
        "MUSTER_FAILFAST_GRACE_S": str(GRACE_S),
        "MUSTER_RUN_DIR": str(job.folder / "run"),
    }
    job.expect(code_writes=("go",))
    job.start_until("ready")
    began = time.monotonic()
    fail(job)
    job.wait_for("algo-1", "told")  # the fault: it lives on
    results = job.wait(GRACE_S + MORE_S + 5)
    took_s = time.monotonic() - began
    assert GRACE_S <= took_s < GRACE_S + within(MORE_S), job.story(f"it took {took_s:.1f} s")
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    ends = {rank["host"]: (rank["status"], rank["forced"]) for rank in summary["ranks"]}
    assert ends["algo-1"] == (-9, True)
    assert not job.marked_processes()
    return results


@pytest.mark.promise("F09")
def test_a_rank_that_ignores_the_stop_after_a_failure_elsewhere_is_killed_after_the_grace(
    cluster: Make,
) -> None:
    job = cluster(SCRIPT)
    results = fail_beside_one_that_ignores(
        job, lambda job: (job.base("algo-2") / "code" / "go").touch()
    )
    assert {(r.code, r.first_line) for r in results.values()} == {
        (42, "UserScriptError: exit(42) without an error message (algo-2 rank 1, exit code 42)")
    }


@pytest.mark.promise("F27")
def test_a_rank_that_ignores_the_stop_after_the_loss_of_a_host_is_killed_after_the_grace(
    cluster: Make,
) -> None:
    job = cluster(SCRIPT)
    results = fail_beside_one_that_ignores(job, lambda job: job.processes["algo-2"].kill())
    assert results["algo-2"].code == -9
    assert results["algo-1"].code == 102
    assert results["algo-1"].first_line.startswith("PeerError: lost algo-2 (")
