"""Limits of processes, open files and rights (reliability.md F16, F62, F63)."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import muster
from tests.launcher.support.cluster import Cluster
from tests.launcher.support.fixtures import checked

Make = Callable[..., Cluster]
PACKAGES = str(Path(muster.__file__).parents[1])
NOBODY = 65534
ENVIRON = {"HOME": "/nonexistent", "PYTHONPATH": PACKAGES, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of this machine may enter, as pytest's own may not."""
    folder = Path(tempfile.mkdtemp(prefix="muster-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def as_nobody(open_folder: Path) -> Iterator[Callable[[str], Cluster]]:
    """Makes a one-host cluster that belongs to nobody; checks it after the test."""
    if os.getuid() != 0:
        pytest.skip("only root may become another user")
    if not train():
        pytest.skip("other users can read no Python of 3.10 or later, or not this checkout")
    made: list[Cluster] = []

    def make(script: str) -> Cluster:
        job = Cluster(open_folder / f"cluster-{len(made)}", script, 1, environ=ENVIRON)
        made.append(job)
        return job

    with checked(made):
        yield make


def become(uid: int) -> list[str]:
    """The command that runs another one as a user without any right of root's."""
    names = ["--reuid", "--regid"]
    ids = [word for name in names for word in (name, str(uid))]
    return ["setpriv", *ids, "--clear-groups", "--bounding-set=-all", "--no-new-privs"]


def fresh_uid() -> int:
    """A user who runs nothing else: the kernel counts all processes of one user."""
    return 20_000 + secrets.randbelow(40_000)


def train() -> list[str]:
    """`train` under a Python that other users may run as well; [] when there is none."""
    check = "import os, sys, muster; os.stat(sys.executable); assert sys.version_info > (3, 10)"
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*become(61234), python, "-c", check]
        if not subprocess.run(
            command, env={**ENVIRON, "PATH": os.environ["PATH"]}, capture_output=True, check=False
        ).returncode:
            return [python, "-m", "muster", "train"]
    return []


def give(job: Cluster, uid: int) -> None:
    """Makes the cluster's files the user's."""
    for path in [job.folder, *job.folder.rglob("*")]:
        os.chown(path, uid, uid)


def start_limited(job: Cluster, uid: int, processes: int) -> None:
    """Starts `train` as the user, who may have so many processes and threads in all."""
    give(job, uid)
    limit = ["prlimit", f"--nproc={processes}:{processes}"]
    job.start(command=[*limit, *become(uid), *train()])


@pytest.mark.promise("F16")
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_a_limit_of_processes_is_named(as_nobody: Callable[[str], Cluster], processes: int) -> None:
    """The kernel counts threads too: whatever cannot be started, the error says why."""
    job = as_nobody("print('ran')")
    start_limited(job, fresh_uid(), processes)
    result = job.wait(20)["algo-1"]
    assert result.out == ""  # the fault: nothing could run
    assert result.code == 106, result.err
    assert "the limit of processes is reached" in result.first_line


@pytest.mark.promise("F16")
def test_a_limit_that_is_reached_at_any_moment_hangs_no_job(
    as_nobody: Callable[[str], Cluster],
) -> None:
    """Jobs of one user take each other's processes away, each at another place of its way."""
    uid = fresh_uid()
    jobs = [as_nobody("print('ran')") for _ in range(18)]
    for begin in range(0, len(jobs), 6):
        batch = jobs[begin : begin + 6]
        for number, job in enumerate(batch):
            start_limited(job, uid, 7 + number)
        results = [job.wait(20)["algo-1"] for job in batch]
        # 126: setpriv itself could not start anything
        assert {result.code for result in results} <= {0, 106, 126}, results
        for result in results:
            if result.code == 106:
                assert "the limit of processes is reached" in result.first_line
    assert any(job.result("algo-1").code == 106 for job in jobs)  # the fault


@pytest.mark.promise("F16")
def test_a_script_that_cannot_fork_fails_as_a_script_does(
    as_nobody: Callable[[str], Cluster],
) -> None:
    script = (
        "import resource, subprocess\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "subprocess.run(['true'])\n"
    )
    job = as_nobody(script)
    uid = fresh_uid()
    give(job, uid)
    job.start(command=[*become(uid), *train()])
    result = job.wait(20)["algo-1"]
    assert result.code == 1
    assert result.first_line.startswith("UserScriptError: BlockingIOError: [Errno 11] Resource")


READS_THE_ROOT = (
    "import os, sys\n"
    "print(os.getuid(), open('/proc/self/status').read().split('CapEff:')[1].split()[0])\n"
    "for path in ('/', '/tmp', os.path.expanduser('~')):\n"
    "    try:\n        open(f'{path}/probe-{os.getpid()}', 'w')\n"
    "    except OSError as error:\n        print(error.strerror)\n"
    "for name in ('SM_MODEL_DIR', 'SM_OUTPUT_DATA_DIR'):\n"
    "    open(os.path.join(os.environ[name], 'written'), 'w').close()\n"
)


@pytest.mark.promise("F63")
def test_a_user_without_rights_on_a_read_only_root_runs_a_job(
    as_nobody: Callable[[str], Cluster],
) -> None:
    """Only the job's own tree and one folder for temporary files can be written."""
    job = as_nobody(READS_THE_ROOT)
    base, temp = job.base("algo-1"), job.folder / "temp"
    temp.mkdir()
    give(job, NOBODY)
    mounts = " && ".join(
        [
            f"mount --bind {base} {base}",
            f"mount -t tmpfs -o size=1m,mode=1777 tmpfs {temp}",
            "mount -o remount,bind,ro /",
            "mount -t tmpfs -o ro tmpfs /dev/shm",
        ]
    )
    drop = "exec unshare --user --map-user=65534 --map-group=65534"
    plain = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*plain, *unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets users make no namespaces")
    job.start(
        command=[*plain, *unshare, "sh", "-c", f'{mounts} && {drop} "$@"', "sh", *train()],
        environ={"TMPDIR": str(temp)},
    )
    result = job.wait(20)["algo-1"]
    # the fault: no right, and no place to write to
    who, *rest = result.out.splitlines()
    assert who == f"{NOBODY} 0000000000000000", result.err
    assert rest == ["Read-only file system"] * 2 + ["No such file or directory"], result.err
    assert (result.code, result.success, result.failure) == (0, True, "")
    assert (base / "model" / "written").exists()
    assert (base / "output" / "data" / "written").exists()
