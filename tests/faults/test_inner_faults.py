"""F12: whatever is raised inside the launcher, the job never ends with 0 and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

Make = Callable[..., Cluster]

# What the launcher's own code raises, patched in from outside: `train` runs otherwise as it is.
SABOTAGE = (
    "import os, sys, muster.train_job.work as work, muster.run.supervise as supervise\n"
    "import muster.run.ranks as ranks, muster.run.hostlife as hostlife, shutil\n"
    "where, error = {where!r}, {error}\n"
    "def broken(*args, **kwargs):\n"
    "    print('sabotaged', file=sys.stderr, flush=True)\n"
    "    raise error\n"
    "owner, _, name = where.rpartition('.')\n"
    "holder = eval(owner)\n"
    "setattr(holder, name, broken)\n"
    "from muster.cli import train\n"
    "sys.argv = ['train']\n"
    "train()\n"
)
PLACES = [
    "work.JobWork.begin",
    "work.JobWork.identity",
    "work.JobWork.stage",
    "work.JobWork.plan",
    "work.JobWork.write",
    "work.JobWork._rank_environment",
    "ranks.HostRanks.start",
    "ranks.HostRanks.registered",
    "ranks.HostRanks.changed",
    "hostlife.HostLife.tick",
    "hostlife.HostLife._all_gone",
    "supervise._Supervisor._wrap_up",
]
ERRORS = ["OSError()", "shutil.Error([])", "ValueError('x')", "KeyError('x')", "TimeoutError()"]
CASES = [(place, ERRORS[i % len(ERRORS)]) for i, place in enumerate(PLACES)]


@pytest.mark.promise("F12")
@pytest.mark.parametrize(("where", "error"), CASES)
def test_no_exception_inside_the_launcher_ends_with_success(
    cluster: Make, tmp_path: Path, where: str, error: str
) -> None:
    job = cluster("print('ran', flush=True)\nimport time; time.sleep(0.2)\n", hosts=1)
    done = subprocess.run(
        [sys.executable, "-c", SABOTAGE.format(where=where, error=error)],
        env={**job.environ, "SAGEMAKER_BASE_DIR": str(job.base("algo-1"))},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "sabotaged" in done.stderr
    assert done.returncode == 105, done.stderr
    assert "InternalError" in done.stderr
    failure = job.base("algo-1") / "output" / "failure"
    if where != "work.JobWork.write":  # the one that writes it
        assert failure.read_text().startswith("InternalError: "), done.stderr
    assert not (job.base("algo-1") / "output" / "success").exists()
