"""S08: only the script sees a secret; logs, failure text, record and process list do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster

Make = Callable[..., Cluster]


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
