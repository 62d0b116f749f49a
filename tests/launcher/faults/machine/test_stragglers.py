"""A slow rank is named while the job runs, with what slows it; in a clean job nobody is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.disks.silent_mount import silent_mount
from tests.support.effort import effort
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(400)]
Make = Callable[..., Cluster]
CLEAN_RUNS = 50  # of make test-long
FOUND_S = 200.0  # on a busy machine; else 20 s
CPU = Path("/sys/fs/cgroup/cpu")
WORK = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
import muster
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index):
        time.sleep(0.1)
        return index

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass

kind, until = os.environ["SM_HP_KIND"], os.environ["SM_HP_UNTIL"]
dist.init_process_group("gloo")
rank = dist.get_rank()
slow = kind if rank == 1 else ""
batches = iter(DataLoader(Slow(), num_workers=1)) if slow == "loader" else None
rows = os.open(os.environ["SM_HP_ROWS"], os.O_RDONLY) if slow == "disk" else -1
burners = []
if slow == "crowd":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    os.nice(5)
x, over, step = torch.ones(1000), torch.zeros(1), 0
while not over[0]:
    time.sleep(0.05)
    if slow == "compute": compute(0.05)
    elif slow == "sleep": time.sleep(0.1)
    elif slow in ("quota", "crowd"): compute(0.03)
    elif slow == "disk": os.pread(rows, 4096, 0)
    elif batches is not None: next(batches)
    dist.all_reduce(x)
    over[0] = float(os.path.exists(until))
    dist.all_reduce(over)
    step += 1
    muster.metrics(step=step)
for burner in burners:
    burner.kill()
    burner.wait()
"""


@pytest.fixture
def quota() -> Iterator[Path]:
    """A group of processes, without a limit yet."""
    group = CPU / f"muster-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("-1")
    except OSError:
        pytest.skip("no cgroup of the first version can be made for the CPU here")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), 30)
    group.rmdir()


def job_of(cluster: Make, tmp_path: Path, kind: str) -> tuple[Cluster, Path]:
    until = tmp_path / "until"
    values = {"sagemaker_torch_distributed_enabled": "true", "kind": kind, "until": str(until),
              "rows": str(tmp_path / "mount" / "rows")}  # fmt: skip
    environ = {"MUSTER_STRAGGLERS_S": "10", "MUSTER_LOST_AFTER_S": "60"}
    job = cluster(WORK, hosts=2, hyperparameters=values, environ=environ)
    job.expect(code_writes=True, limit_s=FOUND_S + 120)
    return job, until


def found(job: Cluster, until: Path, then: Callable[[], object] = lambda: None) -> str:
    """What the first host said of a straggler; `then` comes before the end of the job."""
    job.wait_for("algo-1", "straggler: ", "err", FOUND_S)
    then()
    until.touch()
    results = job.wait(120)
    assert all(one.success for one in results.values())
    line, *more = results["algo-1"].err.partition("straggler: ")[2].splitlines()
    wrapped = takewhile(lambda one: one.startswith("    "), more)
    return " ".join([line, *map(str.strip, wrapped)])


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("sleep", "it sleeps (at train.py"),
        ("compute", "its own computation (at train.py|run delay: "),  # the other on a busy machine
        ("loader", "data loader: "),
        ("crowd", "run delay: "),
    ],
)
def test_a_slow_rank_is_named_with_its_cause(
    cluster: Make, tmp_path: Path, kind: str, cause: str
) -> None:
    job, until = job_of(cluster, tmp_path, kind)
    job.start()
    said = found(job, until)
    assert said.startswith("rank 1 (algo-2): its own time of a step is")
    assert any(one in said for one in cause.split("|"))


def test_a_rank_on_a_slow_disk_is_named_with_its_file(cluster: Make, tmp_path: Path) -> None:
    job, until = job_of(cluster, tmp_path, "disk")
    with silent_mount(tmp_path / "mount", read_s=0.1):
        job.start()
        said = found(job, until)
    assert said.startswith("rank 1 (algo-2): its own time of a step is")
    assert "disk: it waits for files (at train.py" in said
    assert f"on {tmp_path / 'mount' / 'rows'})" in said


def test_a_rank_that_its_limit_holds_up_is_named_with_that(
    cluster: Make, tmp_path: Path, quota: Path
) -> None:
    job, until = job_of(cluster, tmp_path, "quota")
    job.start("algo-1")
    enters = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
    job.start(
        "algo-2", command=["sh", "-c", enters, str(quota), sys.executable, "-m", "muster", "train"]
    )
    job.wait_for("algo-1", "muster metrics step=2\n", limit_s=120)  # the start is not held up
    (quota / "cpu.cfs_quota_us").write_text("25000")  # a quarter of a processor
    said = found(job, until, lambda: (quota / "cpu.cfs_quota_us").write_text("-1"))
    assert "throttled: " in said


@pytest.mark.effort
@pytest.mark.timeout(7200)
def test_in_clean_jobs_nobody_is_named(cluster: Make, tmp_path: Path) -> None:
    for number in range(min(CLEAN_RUNS, effort())):
        home = tmp_path / str(number)
        home.mkdir()
        check_clean(cluster, home)


def check_clean(cluster: Make, tmp_path: Path) -> None:
    job, until = job_of(cluster, tmp_path, "")
    job.start()
    job.wait_for("algo-1", "muster metrics step=400\n", limit_s=FOUND_S)
    until.touch()
    results = job.wait(120)
    assert all(one.success for one in results.values())
    assert "straggler" not in results["algo-1"].err
