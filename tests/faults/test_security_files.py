"""Names of files that somebody may have guessed and occupied (reliability.md S18)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Result

Make = Callable[..., Cluster]

pytestmark = pytest.mark.promise("S18")
WAITS = """\
import os, time
print('ready', flush=True)
while not os.path.exists(os.path.join(os.environ['TEST_FOLDER'], 'go')):
    time.sleep(0.02)
"""
LONG = {"long": "x" * 100_000, "longer": "y" * 100_000}  # too long for variables
PREDICTABLE = [
    ".muster-reserve",
    "failure",
    "success",
    "data/muster/summary.json",
    "data/muster/summary.json.part",
    "data/muster/events.jsonl",
    "data/muster/logs/rank-0.out",
    "data/muster/logs/rank-0.err",
    "data/muster/logs/rank-0.out.tail",
]


def outside(job: Cluster) -> tuple[Path, Path]:
    """A file and a folder of somebody else's."""
    folder = job.folder / "outside"
    folder.mkdir()
    (folder / "file").write_text("sentinel")
    return folder / "file", folder


def untouched(job: Cluster) -> None:
    folder = job.folder / "outside"
    assert sorted(os.listdir(folder)) == ["file"]
    assert (folder / "file").read_text() == "sentinel"


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("name", PREDICTABLE)
def test_a_link_in_the_place_of_a_status_file_is_not_followed(
    cluster: Make, name: str, code: int
) -> None:
    job = cluster(f"print('x' * 1000)\nraise SystemExit({code})\n", hosts=1)
    job.environ["MUSTER_LOG_LIMIT"] = "100"  # so that a tail is kept
    victim, _ = outside(job)
    path = job.base("algo-1") / "output" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(victim)
    result = job.run()["algo-1"]
    assert result.code == code
    untouched(job)
    _check_status(job, result)


def _check_status(job: Cluster, result: Result) -> None:
    status = job.base("algo-1") / "output" / ("failure" if result.code else "success")
    assert status.is_file() and not status.is_symlink()


def test_a_link_in_the_place_of_the_folder_for_long_values_is_not_followed(cluster: Make) -> None:
    job = cluster("import os; print(len(os.environ['SM_HPS_FILE']) > 0)\n", hosts=1)
    job.set_hyperparameters({"sagemaker_program": "train.py", **LONG})
    _, folder = outside(job)
    path = job.base("algo-1") / "output" / ".muster-spilled"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(folder)
    result = job.run()["algo-1"]
    assert result.code == 0
    assert result.out == "True\n"
    untouched(job)


def test_a_folder_for_long_values_that_others_may_read_is_made_anew(cluster: Make) -> None:
    script = (
        "import os, stat\n"
        "folder = os.path.dirname(os.environ['SM_HPS_FILE'])\n"
        "print(oct(stat.S_IMODE(os.stat(folder).st_mode)), 'planted' in os.listdir(folder))\n"
    )
    job = cluster(script, hosts=1)
    job.set_hyperparameters({"sagemaker_program": "train.py", **LONG})
    path = job.base("algo-1") / "output" / ".muster-spilled"
    path.mkdir(parents=True)
    path.chmod(0o777)
    (path / "planted").write_text("x")
    assert job.run()["algo-1"].out == "0o700 False\n"


def test_what_a_job_makes_in_the_temporary_folder_is_private_and_never_called_the_same(
    cluster: Make,
) -> None:
    names: list[set[str]] = []
    for _ in range(2):
        job = cluster(WAITS)
        job.environ["TEST_FOLDER"] = str(job.folder)
        job.start()
        for host in job.names:
            job.wait_for(host, "ready")
        made = list(job.temp.iterdir())
        assert len(made) >= len(job.names)
        for path in made:
            about = path.lstat()
            assert stat.S_ISDIR(about.st_mode) and stat.S_IMODE(about.st_mode) == 0o700, path
            assert about.st_uid == os.getuid()
        names.append({path.name for path in made})
        (job.folder / "go").touch()
        assert {result.code for result in job.wait(30).values()} == {0}
        assert not list(job.temp.iterdir())
    assert not names[0] & names[1]
