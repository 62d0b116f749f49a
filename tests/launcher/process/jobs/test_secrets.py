"""S08: only the script sees a secret; logs, failure text, record and process list do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]


TORCHRUN = {"sagemaker_torch_distributed_enabled": "true"}


def show(pid: int, what: str) -> bytes:
    """Of a process, as /proc has it; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def everything_below(folder: Path) -> bytes:
    return b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    )


@pytest.mark.promise("S08")
def test_a_secret_in_a_traceback_is_masked_in_every_text_of_ours(cluster: Make) -> None:
    script = "import os\nraise ValueError('token ' + os.environ['MY_API_TOKEN'] + ' refused')\n"
    job = cluster(script)
    job.expect(scripts_show_it=True)
    results = job.run()
    for name, result in results.items():
        assert result.first_line.startswith("UserScriptError: ValueError: token *** refused (")
        assert job.canary not in result.failure
        ours = [line for line in result.err.splitlines() if line.startswith(("20", "FAILED", "  "))]
        assert not any(job.canary in line for line in ours if line.startswith(("20", "FAILED")))
        record = everything_below(job.base(name) / "output" / "data")
        assert record and job.canary.encode() not in record
    block = results["algo-1"].err[results["algo-1"].err.index("FAILED ") :]
    assert job.canary not in block


@pytest.mark.promise("S09")
@pytest.mark.parametrize("hyperparameters", [{}, pytest.param(TORCHRUN, marks=pytest.mark.torch)])
@pytest.mark.slow
def test_of_all_processes_of_a_job_only_train_has_its_secret(
    cluster: Make, hyperparameters: dict[str, str]
) -> None:
    """Shims, launchers, ranks and what they start are looked at from outside, as /proc has them."""
    script = "import subprocess\nprint('ready', flush=True)\nsubprocess.run(['sleep', '600'])\n"
    job = cluster(script, hyperparameters=hyperparameters)
    job.start_until("ready", 60)
    secret = job.environ["MUSTER_JOB_SECRET"].encode()

    def sleeping() -> bool:
        return sum(b"sleep" in show(pid, "cmdline") for pid in job.marked_processes()) == 2

    wait_until(sleeping, 10)
    everything = job.marked_processes()
    holders = {pid for pid in everything if secret in show(pid, "environ")}
    assert holders == {train.pid for train in job.processes.values()}
    assert len(everything) >= 8  # of each host: `train`, a shim, a rank and its child
    assert not [pid for pid in everything if secret in show(pid, "cmdline")]
    job.signal("algo-2")
    assert {result.code for result in job.wait(30).values()} == {143}


@pytest.mark.promise("S03")
@pytest.mark.parametrize(
    ("secret", "environ", "level"),
    [
        (False, {}, "WARNING"),
        (False, {"TRAINING_JOB_ARN": "arn:aws:sagemaker:::training-job/x"}, "INFO"),
        (True, {}, ""),
    ],
    ids=["elsewhere", "on SageMaker", "with a secret"],
)
def test_a_job_whose_hosts_share_no_secret_says_so_once(
    cluster: Callable[..., Cluster], secret: bool, environ: dict[str, str], level: str
) -> None:
    job = cluster("pass\n", environ=environ)
    if not secret:
        del job.environ["MUSTER_JOB_SECRET"]
    texts = [result.err for result in job.run(limit_s=20).values()]
    said = [line for text in texts for line in text.splitlines() if "MUSTER_JOB_SECRET" in line]
    assert [line.split()[2] for line in said] == ([level] if level else [])
