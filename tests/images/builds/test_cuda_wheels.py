"""cuda-efa with its REAL CUDA wheels and a STUB of the EFA installer: 2.6 GB to download and some
20 GB of disk while it is built, so it runs in `make test-long` only. There is no GPU in it.

The image and what its build left in the engine's cache are removed at the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.images.pins import CHECKOUT, pins
from scripts.images.sizes import layers, table
from tests.images.stub.builds import upstream
from tests.images.stub.efa import make_installer
from tests.support.effort import effort
from tests.support.images import LABEL, RUN, client

pytestmark = [pytest.mark.dev, pytest.mark.effort, pytest.mark.timeout(3600)]
PROGRAMS = Path(__file__).parent / "cuda"
BUDGET_BYTES = 9_000_000_000
NEEDED_BYTES = 30_000_000_000
SIZES = CHECKOUT / ".cache" / "images" / "cuda-efa-sizes.json"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if effort() == 1:
        pytest.skip("2.6 GB of CUDA wheels: only in make test-long (TEST_EFFORT)")
    engine = client()
    root = engine.must("info", "--format={{.DockerRootDir}}").strip()
    free = shutil.disk_usage(root if Path(root).is_dir() else "/").free
    if free < NEEDED_BYTES:
        pytest.skip(f"{NEEDED_BYTES / 1e9:.0f} GB of disk are needed, {free / 1e9:.0f} GB are free")
    with upstream(tmp_path_factory.mktemp("cuda")) as served:
        installer = make_installer(served.folder, pins()["EFA_VERSION"])
        outcome = served.build(
            "cuda-efa", f"EFA_URL={served.url}", f"EFA_SHA256={installer.sha256}"
        )
        assert outcome.reference, outcome.said
        yield outcome.reference


def run(image: str, *argv: str, limit_s: float = 300) -> str:
    """What a program writes in a container without a network. Fails when it fails."""
    done = client().run(
        "run", "--rm", f"--label={LABEL}={RUN}", "--network=none",
        f"--volume={PROGRAMS}:/programs:ro", f"--volume={CHECKOUT}/benchmarks:/benchmarks:ro",
        image, *argv, limit_s=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torch_with_cuda_imports_without_a_gpu_and_finds_nccl(image: str) -> None:
    said = json.loads(run(image, "python", "/programs/torch_and_nccl.py"))
    assert said["torch"].partition("+")[0] == pins()["TORCH_VERSION"]
    assert said["cuda"].startswith("13.") and said["has_nccl"] and not said["has_gpu"]
    lock = (CHECKOUT / "docker" / "constraints" / "cuda-efa.txt").read_text()
    assert f"nvidia-nccl-cu13=={'.'.join(str(part) for part in said['nccl'])}" in lock


def test_all_reduce_runs_by_the_launcher_and_gloo(image: str) -> None:
    said = run(
        image, "muster", "local", "/benchmarks/all_reduce.py", "--hosts", "2", "--distribution",
        "torch_distributed", "--hyperparameter", "largest=4194304",
    )  # fmt: skip
    assert "bytes=4194304 ranks=2" in said


def test_the_parameter_server_trains(image: str) -> None:
    said = run(
        image, "muster", "local", "/programs/parameter_server.py", "--hosts", "2",
        "--distribution", "parameter_server",
    )  # fmt: skip
    assert said.count("fitted=3.000") == 2


def test_torch_compile_finds_its_compiler(image: str) -> None:
    program = "import torch; print(torch.compile(lambda x: (x.sin() + 1).sum())(torch.ones(8)))"
    assert "tensor(14.7318)" in run(image, "python", "-c", program)


def test_the_image_is_within_its_budget(image: str) -> None:
    """Without the real EFA software, which the stub stands for."""
    found = layers(client(), image)
    print(table(found, base_bytes=found[0].size_bytes))
    SIZES.parent.mkdir(parents=True, exist_ok=True)
    SIZES.write_text(json.dumps([layer._asdict() for layer in found], indent=1) + "\n")
    assert sum(layer.size_bytes for layer in found) < BUDGET_BYTES
