"""A shim that is killed loses no status: its script is adopted (protocol.md, Ranks)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster, describe
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
ENDS_WHEN_TOLD = (
    "import os, sys, time\n"
    "print('ready', os.getpid(), flush=True)\n"
    "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
    "sys.exit(5)\n"
)


def shim_above(pid: int) -> int:
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert "rank_shim" in describe(parent)
    return parent


@pytest.mark.parametrize(
    "option",
    [
        {},
        pytest.param({"sagemaker_torch_distributed_enabled": "true"}, marks=pytest.mark.torch),
    ],
)
def test_the_true_status_of_a_script_without_its_shim_is_known(
    cluster: Make, option: dict[str, str]
) -> None:
    job = cluster(ENDS_WHEN_TOLD, hosts=1, hyperparameters=option)
    job.expect(code_writes=("go",))
    job.start_until("ready", limit_s=60)
    pid = int(job.text("algo-1").split()[1])
    shim = shim_above(pid)
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{shim}").exists(), 5, "the shim is still there")
    (job.base("algo-1") / "code" / "go").touch()
    result = job.wait(15)["algo-1"]
    assert result.code == 5, result.err
    assert "(algo-1 rank 0, exit code 5)" in result.first_line


def test_a_stop_reaches_a_script_that_lost_its_shim(cluster: Make) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), sys.exit(0)))\n"
        "print('ready', os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    job = cluster(script, hosts=1)
    job.start_until("ready")
    shim = shim_above(int(job.text("algo-1").split()[1]))
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{shim}").exists(), 5, "the shim is still there")
    job.signal("algo-1")
    result = job.wait(10)["algo-1"]
    assert (result.code, "told" in result.out) == (143, True)


@pytest.mark.torch
def test_a_launcher_that_is_killed_ends_the_job_and_its_ranks(cluster: Make) -> None:
    script = "import os, time\nprint('ready', os.getpid(), flush=True)\ntime.sleep(600)\n"
    job = cluster(script, hosts=1, hyperparameters={"sagemaker_torch_distributed_enabled": "true"})
    job.start_until("ready", limit_s=60)
    shim = shim_above(int(job.text("algo-1").split()[1]))
    torchrun = int(Path(f"/proc/{shim}/stat").read_text().rpartition(")")[2].split()[1])
    assert "torchrun" in describe(torchrun)
    os.kill(torchrun, signal.SIGKILL)
    result = job.wait(15)["algo-1"]
    assert result.code == 137
    assert "the launcher torchrun was killed by SIGKILL while its ranks ran" in result.first_line


@pytest.mark.promise("F67")
def test_a_job_whose_shim_is_stopped_says_so_and_ends_when_told(cluster: Make) -> None:
    script = "import os, time\nprint('ready', os.getpid(), flush=True)\ntime.sleep(600)\n"
    job = cluster(script, hosts=1)
    job.start_until("ready")
    shim = shim_above(int(job.text("algo-1").split()[1]))
    os.kill(shim, signal.SIGSTOP)
    named = f"the process above rank 0 (PID {shim}) is stopped"
    job.wait_for("algo-1", named, stream="err", limit_s=90)
    job.signal("algo-1")
    result = job.wait(20)["algo-1"]
    assert result.code == 143
    before, _, _ = result.err.partition("STOPPED by ")
    assert before.rstrip().splitlines()[-1].startswith(named)
