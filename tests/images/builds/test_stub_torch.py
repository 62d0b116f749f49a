"""Another torch, and torchvision and torchaudio beside it, from a STUB of torch's CPU index: the
lock that `make lock-torch` makes of it, and the image that is built by it. The real index could not
be reached where this was written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.images.pins import CHECKOUT
from tests.images.stub.builds import Upstream, upstream
from tests.images.stub.wheels import make_wheel, stub_packages, stub_torch
from tests.support.images import client, contained

pytestmark = [pytest.mark.dev, pytest.mark.timeout(1200)]
FAMILY = ("torch==9.9.0+cpu", "torchvision==0.99.0+cpu", "torchaudio==0.98.0+cpu")


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    client()
    with upstream(tmp_path_factory.mktemp("torch")) as served:
        for pin in FAMILY:
            name, _, version = pin.partition("==")
            files = stub_torch() if name == "torch" else stub_packages(name)
            make_wheel(served.folder / "simple", name, version, files)
        yield served


def lock_torch(checkout: Path, index: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`make lock-torch` in a copy of the checkout, with that index."""
    for part in ("scripts/lock-torch", "docker/versions.env"):
        (checkout / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / part, checkout / part)
    (checkout / "docker/constraints").mkdir()
    (checkout / ".venv").symlink_to(CHECKOUT / ".venv")
    with (checkout / "docker/versions.env").open("a") as file:
        file.write(f"TORCH_CPU_INDEX={index}\n")
    argv = [str(checkout / "scripts/lock-torch"), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def lock(stub: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the stub index; the images' steps see it too."""
    copy = tmp_path_factory.mktemp("checkout")
    done = lock_torch(copy, f"{stub.url}/simple", "9.9.0")
    assert done.returncode == 0, done.stderr
    made = copy / "docker/constraints/torch-9.9.0.txt"
    return Path(shutil.copy(made, stub.context / "docker/constraints"))


def test_the_lock_names_torch_and_what_goes_with_it_by_hash(lock: Path) -> None:
    text = lock.read_text()
    pins = [line.split()[0] for line in text.splitlines() if "==" in line]
    assert sorted(pins) == sorted(FAMILY)
    assert text.count("--hash=sha256:") == len(FAMILY)
    assert "://" not in text


def test_an_index_that_does_not_answer_leaves_no_lock(tmp_path: Path) -> None:
    done = lock_torch(tmp_path, "http://127.0.0.1:1/")
    assert done.returncode == 1
    assert "no lock was made; is http://127.0.0.1:1/ reachable" in done.stderr
    assert list((tmp_path / "docker/constraints").iterdir()) == []


def test_the_stub_image_has_that_torch_and_torchvision_beside_it(
    stub: Upstream, lock: Path
) -> None:
    index = f"TORCH_CPU_INDEX={stub.url}/simple"
    outcome = stub.build("cpu", "TORCH_VERSION=9.9.0", "WITH_TORCHVISION=1", index)
    assert outcome.reference, outcome.said
    code = (
        "from importlib.metadata import version as v; import torchvision, torchaudio, PIL\n"
        "print(v('torch'), v('torchvision'), v('torchaudio'))"
    )
    done = contained(client(), "--network=none", outcome.reference, "python", "-c", code)
    assert done.stdout.split() == [pin.partition("==")[2] for pin in FAMILY], done.stderr


def test_a_lock_without_torchvision_is_refused_in_words(stub: Upstream) -> None:
    """The one of the pinned torch, until its index has been reached."""
    outcome = stub.build("venv-cpu-whole", "WITH_TORCHVISION=1")
    assert not outcome.reference
    assert "does not lock torchvision: make lock-torch" in outcome.said
