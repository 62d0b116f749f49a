"""One GPU: streams, events, NCCL, and a job of the launcher on it (`make test-gpu`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.collectives.support.torch_ranks import TEST_S, names_of, run_checks
from tests.launcher.support.local.local_runs import PROCESS, runs

pytestmark = [pytest.mark.torch, pytest.mark.timeout(2 * TEST_S)]
LIMIT_S = 1.5 * TEST_S
HOST = {"COLLECTIVES_DEVICE_ALL_REDUCE": "host"}
TRAINS = """\
import os, torch, torch.distributed as dist
import muster_collectives.torch
dist.init_process_group("muster")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
print("gpus", os.environ["SM_NUM_GPUS"], "world", dist.get_world_size(), flush=True)
if os.environ.get("SM_HP_LOSE"):
    torch.ones(1, device="cuda")[torch.tensor([7], device="cuda")].sum().item()
dist.destroy_process_group()
"""


@pytest.fixture
def _gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU here: streams, events and NCCL are proved on one")


def test_one_rank_trains_on_the_gpu_if_there_is_one(tmp_path: Path) -> None:
    _run(tmp_path, "ranks_alone.py", 1, {})


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    ("script", "environ"),
    [
        pytest.param("ranks_pair.py", {}, id="the device path"),
        pytest.param("ranks_host.py", HOST, id="sums in host memory"),
    ],
)
def test_two_ranks_share_a_gpu(tmp_path: Path, script: str, environ: Mapping[str, str]) -> None:
    _run(tmp_path, script, 2, environ)


def _run(tmp_path: Path, script: str, ranks: int, environ: Mapping[str, str]) -> None:
    path = Path(__file__).with_name(script)
    job = run_checks(path, ranks, tmp_path, environ=environ, fresh=True, limit_s=LIMIT_S)
    for name in ("start", *names_of(path), "stop"):
        job.require(name)


def _job(home: Path, *more: str) -> tuple[int, str, str]:
    """How a job of one host that trains with torchrun ended, and what it said."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi here: the launcher finds GPUs by it")
    (home / "src").mkdir()
    (home / "src/train.py").write_text(TRAINS)
    words = ("src/train.py", "--distribution", "torch_distributed", *more, *PROCESS)
    with runs() as start:
        result = start(home, words).wait(LIMIT_S)
        return result.code, result.out, result.err


@pytest.mark.usefixtures("_gpu")
def test_a_job_finds_the_gpus_and_trains_on_the_first(tmp_path: Path) -> None:
    import torch

    code, out, err = _job(tmp_path, "--processes-per-host", "1")
    assert code == 0, err
    assert f"gpus {torch.cuda.device_count()} world 1" in out, out


@pytest.mark.usefixtures("_gpu")
def test_an_error_of_the_device_is_what_the_job_ends_with(tmp_path: Path) -> None:
    code, out, err = _job(tmp_path, "--processes-per-host", "1", "--hyperparameter", "lose=1")
    assert code not in (0, 124), out
    assert "device-side assert" in err or "CUDA error" in err, err
