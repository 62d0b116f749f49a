"""Whose a process is: all of ours ends with the job, nothing else is touched (protocol.md, End)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.faults.processes.test_shim_faults import shim_above
from tests.launcher.support.cluster import Cluster
from tests.support.waiting import wait_until

Make = Callable[..., Cluster]
TRAIN = [sys.executable, "-m", "muster", "train"]

# a daemon in a session of its own, and without any variable that says where it comes from
HIDES = """
import os, subprocess, sys, time
null = subprocess.DEVNULL
daemon = subprocess.Popen(
    ["sleep", "300"], env={}, start_new_session=True, stdin=null, stdout=null, stderr=null
)
print("ready", os.getpid(), daemon.pid, flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
"""


@pytest.fixture
def hidden() -> Iterator[list[int]]:
    """Processes that no mark finds: they are ended after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.mark.promise("F14")
@pytest.mark.parametrize("shim_dies", [False, True])
def test_a_daemon_without_a_trace_of_its_origin_ends_with_the_job(
    cluster: Make, hidden: list[int], shim_dies: bool
) -> None:
    job = cluster(HIDES, hosts=1)
    job.expect(code_writes=("go",))
    job.start_until("ready")
    script, daemon = map(int, job.text("algo-1").split()[1:3])
    hidden.append(daemon)
    assert Path(f"/proc/{daemon}/environ").read_bytes() == b""  # the fault
    assert os.getsid(daemon) == daemon
    if shim_dies:
        shim = shim_above(script)
        os.kill(shim, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{shim}").exists(), 5, "the shim is still there")
    (job.base("algo-1") / "code" / "go").touch()
    assert job.wait(15)["algo-1"].code == 0
    assert not lives(daemon)


def test_a_process_that_was_there_before_is_left_alone(cluster: Make, hidden: list[int]) -> None:
    """A wrapper script may start a daemon and then become `train`: so it is our child."""
    job = cluster("print('ran')", hosts=1)
    note = job.folder / "daemon"
    start = f'env -i sleep 300 >/dev/null 2>&1 & echo $! > {note}; exec "$@"'
    job.start(command=["sh", "-c", start, "sh", *TRAIN])
    result = job.wait(15)["algo-1"]
    daemon = int(note.read_text())
    hidden.append(daemon)
    assert (result.code, result.out) == (0, "ran\n")
    assert lives(daemon)


def test_a_process_that_such_a_one_starts_later_is_left_alone(
    cluster: Make, hidden: list[int]
) -> None:
    """Its orphans come to be our children, since we adopt what is orphaned below us."""
    job = cluster("import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)", hosts=1)
    job.expect(code_writes=("go",))
    note, begin = job.folder / "daemon", job.folder / "begin"
    later = (
        f"until [ -e {begin} ]; do sleep 0.05; done; "
        f"(env -i sleep 300 >/dev/null 2>&1 & echo $! > {note}.part; mv {note}.part {note})"
    )
    start = f'env -i PATH="$PATH" sh -c "{later.replace("$", chr(92) + "$")}" & exec "$@"'
    job.start(command=["sh", "-c", start, "sh", *TRAIN])
    train = job.processes["algo-1"].pid
    job.wait_for("algo-1", "Invoking script", "err")
    begin.touch()
    wait_until(note.exists, 5, "the daemon was never started")
    daemon = int(note.read_text())
    hidden.append(daemon)
    wait_until(lambda: parent_of(daemon) == train, 5, "the daemon is not our child")  # the fault
    (job.base("algo-1") / "code" / "go").touch()
    assert job.wait(15)["algo-1"].code == 0
    assert lives(daemon)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
