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


@pytest.mark.promise("F12")
def test_no_folder_for_the_socket_is_a_failure_with_a_file(cluster: Make, tmp_path: Path) -> None:
    job = cluster("print('ran')", hosts=1)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SABOTAGE.format(
                where="process.private_folder", error="OSError(28, 'no space')"
            ).replace("import os, sys,", "import os, sys, muster.run.process as process,"),
        ],
        env={**job.environ, "SAGEMAKER_BASE_DIR": str(job.base("algo-1"))},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "sabotaged" in done.stderr
    assert done.returncode == 105, done.stderr
    assert (job.base("algo-1") / "output" / "failure").read_text().startswith("InternalError: ")


@pytest.mark.promise("F12")
@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_defect_on_one_host_is_named_on_all(cluster: Make, host: str) -> None:
    job = cluster("import time\nprint('ran', flush=True)\ntime.sleep(600)\n")
    broken = SABOTAGE.format(where="ranks.HostRanks.changed", error="ValueError('x')")
    for name in job.names:
        job.start(name, command=[sys.executable, "-c", broken] if name == host else None)
    results = job.wait(20)
    assert results[host].code == 105
    other = next(name for name in job.names if name != host)
    assert (results[other].code, results[other].first_line[:13]) in [
        (105, "InternalError"),
        (102, "PeerError: lo"),  # the leader itself broke: nobody is left to decide
    ]
    assert host == "algo-1" or results[other].code == 105, results[other].err
