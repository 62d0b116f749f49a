"""Real jobs whose end has a cause that is easily missed: it is in the first line and the fix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.support.cluster import Cluster
from tests.launcher.support.local.local_runs import PROCESS, Start

Make = Callable[..., Cluster]
TORCHRUN = {"sagemaker_torch_distributed_enabled": True}
TWO_RANKS = {**TORCHRUN, "sagemaker_mpi_num_of_processes_per_host": 2}
EARLY = """\
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(0.5)
    sys.exit(0)
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.promise("F10")
@pytest.mark.parametrize(
    ("script", "code", "first", "fix"),
    [
        ("import pandass\n", 1, "'pandass' (train.py line 1)", "add pandass to requirements.txt"),
        (
            "import ctypes\nctypes.string_at(0)\n", 139,
            "Segmentation fault at train.py line 2 in <module> [SIGSEGV]", "compiled code",
        ),
        ("import os\nos._exit(7)\n", 7, "exit(7) without an error message", "os._exit(7)"),
    ],
    ids=["import", "crash", "exit"],
)  # fmt: skip
def test_the_first_line_names_the_cause(
    cluster: Make, script: str, code: int, first: str, fix: str
) -> None:
    result = cluster(script, hosts=1).run()["algo-1"]
    assert result.code == code
    assert first in result.first_line
    assert fix in result.failure.splitlines()[1]
    assert first.split(" [", maxsplit=1)[0] in result.err


def test_a_rank_that_needs_a_process_group_is_told_how_to_get_one(cluster: Make) -> None:
    script = "import os\nos.environ['RANK']\n"
    results = cluster(script).run(limit_s=30)
    for result in results.values():
        assert "KeyError: 'RANK'" in result.first_line
        assert "torch_distributed" in result.failure.splitlines()[1]
    err = results["algo-1"].err
    assert "WARNING plan no distribution was requested: each of 2 hosts" in err
    assert "WARNING plan no distribution" not in results["algo-2"].err


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_left_early_is_named(cluster: Make) -> None:
    job = cluster(EARLY, hosts=1, hyperparameters=TWO_RANKS)
    for result in job.run(limit_s=120).values():
        assert "rank 1 on algo-1 exited with 0 after " in result.first_line
        assert "while rank 0 was still in all_reduce (algo-1 rank 0" in result.first_line
        assert "all ranks must make the same calls" in result.failure.splitlines()[1]


DATABASE_DOWN = """\
import atexit, os, socket, time
mark = os.path.join(os.environ["TMPDIR"], "down")
if os.environ["RANK"] == "0":
    atexit.register(time.sleep, 1.5)  # rank 1 shows its error before this one has ended
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    open(mark, "w").close()
    socket.create_connection(closed.getsockname(), 2)
while not os.path.exists(mark):
    time.sleep(0.01)
os.unlink(mark)
atexit.register(time.sleep, 600)
time.sleep(0.5)
raise ValueError("follows")
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_whose_own_server_is_down_is_no_victim_of_a_peer(cluster: Make) -> None:
    job = cluster(DATABASE_DOWN, hosts=1, hyperparameters=TWO_RANKS)
    for result in job.run(limit_s=60).values():
        assert "ConnectionRefusedError" in result.first_line


def test_a_crash_is_the_user_s_to_leave_silent(cluster: Make) -> None:
    script = "import os, ctypes\nassert not os.environ['PYTHONFAULTHANDLER']\nctypes.string_at(0)\n"
    job = cluster(script, hosts=1, environ={"PYTHONFAULTHANDLER": ""})
    result = job.run()["algo-1"]
    assert "killed by signal 11 SIGSEGV" in result.first_line
    assert "PYTHONFAULTHANDLER" in result.failure.splitlines()[1]


HOSTILE = "\\x1b[2J\\x9b31m\\x85\\u2028\\u202e\\u200b\\x07"


def test_controls_of_an_error_reach_no_line_of_ours_and_its_log_as_they_are(cluster: Make) -> None:
    job = cluster(f"raise ValueError('{HOSTILE}')\n", hosts=1)
    result = job.run()["algo-1"]
    own = [line for line in result.err.split("\n") if " algo-1 " in line or line[:6] == "FAILED"]
    block = result.err[result.err.rindex("FAILED") :]
    assert own
    for text in (*own, block, result.failure):
        assert all(letter.isprintable() or letter == "\n" for letter in text), ascii(text)
    assert "\x1b[2J\x9b31m" in result.err  # the rank's own traceback


LOADER = """\
import torch
from torch.utils.data import DataLoader, Dataset
class Ones(Dataset):
    def __len__(self): return 64
    def __getitem__(self, place): return torch.ones(1 << 20)
for batch in DataLoader(Ones(), batch_size=8, num_workers=1): pass
"""
MOUNT = 'mount -t tmpfs -o size=16m shm /dev/shm && exec "$@"'
SMALL_SHM = ("unshare", "--mount", "sh", "-c", MOUNT, "sh")


@pytest.mark.torch
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small /dev/shm")
@pytest.mark.slow
def test_a_small_shared_memory_is_warned_of_and_named_when_a_loader_dies_of_it(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "loader.py").write_text(LOADER)
    result = start(tmp_path, ("loader.py", *PROCESS), wrapper=SMALL_SHM).wait(120)
    assert result.code == 1, result.err
    assert "WARNING plan /dev/shm has 16 MiB: DataLoader workers and NCCL may die" in result.err
    assert "\nFix: /dev/shm has 16 MiB, which DataLoader workers" in result.err
