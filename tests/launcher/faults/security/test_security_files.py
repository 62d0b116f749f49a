"""Names of files that somebody may have guessed and occupied (promise S18)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until

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
    "data/muster/algo-1/events.jsonl",
    "data/muster/algo-1/logs/train.log",
    "data/muster/algo-1/logs/rank-0.out",
    "data/muster/algo-1/logs/rank-0.err",
    "data/muster/algo-1/logs/rank-0.out.tail",
]


@pytest.mark.parametrize("code", [0, 3])
def test_a_link_in_the_place_of_a_status_file_is_not_followed(cluster: Make, code: int) -> None:
    job = cluster(f"print('x' * 1000)\nraise SystemExit({code})\n", hosts=1)
    job.environ["MUSTER_LOG_LIMIT"] = "100"  # so that a tail is kept
    victim = job.folder / "outside" / "file"
    victim.parent.mkdir()
    victim.write_text("sentinel")
    for name in PREDICTABLE:
        path = job.base("algo-1") / "output" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(victim)
    result = job.run()["algo-1"]
    assert result.code == code
    assert os.listdir(victim.parent) == ["file"]
    assert victim.read_text() == "sentinel"
    status = job.base("algo-1") / "output" / ("failure" if code else "success")
    assert status.is_file() and not status.is_symlink()


SHOWS_AND_WAITS = """
import os, stat, time
folder = os.path.dirname(os.environ["SM_HPS_FILE"])
print(oct(stat.S_IMODE(os.stat(folder).st_mode)), folder, flush=True)
print("ready", os.getpid(), flush=True)
while not os.path.exists(os.path.join(os.environ['TEST_FOLDER'], 'go')):
    time.sleep(0.02)
"""


def with_long_values(cluster: Make) -> Cluster:
    """A job whose ranks have long values and wait."""
    job = cluster(SHOWS_AND_WAITS, hosts=1)
    job.set_hyperparameters({"sagemaker_program": "train.py", **LONG})
    job.environ["TEST_FOLDER"] = str(job.folder)
    job.start_until("ready")
    mode, folder = job.text("algo-1").split()[:2]
    assert mode == "0o700"
    assert Path(folder).is_relative_to(job.temp)  # no mount of the platform's
    assert "x" * 1000 in Path(folder, "SM_HPS").read_text()
    return job


@pytest.mark.promise("S09")
def test_long_values_lie_in_the_private_folder_until_the_job_ends(cluster: Make) -> None:
    job = with_long_values(cluster)
    (job.folder / "go").touch()
    assert job.wait(30)["algo-1"].code == 0
    assert not list(job.temp.iterdir())


@pytest.mark.promise("S09")
def test_long_values_go_with_a_train_that_is_killed(cluster: Make) -> None:
    job = with_long_values(cluster)
    job.signal("algo-1", signal.SIGKILL)
    job.wait(10)
    wait_until(lambda: not list(job.temp.iterdir()), 10, "the private folder is still there")


@pytest.mark.promise("S09")
def test_the_next_start_removes_what_a_train_and_its_shims_left_that_were_killed(
    cluster: Make,
) -> None:
    job = with_long_values(cluster)
    rank = int(job.text("algo-1").split()[3])
    shim = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(shim, signal.SIGSTOP)
    job.signal("algo-1", signal.SIGKILL)
    job.wait(10)
    for pid in (shim, rank):
        os.kill(pid, signal.SIGKILL)
    assert list(job.temp.iterdir())  # the fault
    other = job.temp / "muster-0123456789ab"  # of a job that lives
    other.mkdir()
    with socket.socket(socket.AF_UNIX) as lives:
        lives.bind(str(other / "s"))
        lives.listen()
        (job.folder / "go").touch()
        job.start()
        assert job.wait(30)["algo-1"].code == 0
        assert list(job.temp.iterdir()) == [other]
    shutil.rmtree(other)


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
