"""The neuron image, built against STUB upstreams: a stub of AWS's EFA installer, of Neuron's apt
repository and of its wheels. What it does on a real Neuron device is not proved here
(docs/how-to/images/accelerators.md).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.images.pins import CHECKOUT, pins
from tests.images.stub.builds import Outcome, Upstream, upstream
from tests.images.stub.efa import make_installer
from tests.images.stub.neuron import Key, made_key, make_repository
from tests.images.stub.wheels import make_wheel, real_lock, stub_packages
from tests.support.images import LABEL, RUN, client

pytestmark = [pytest.mark.dev, pytest.mark.timeout(1200)]
PINS = pins()
PACKAGES = {
    "aws-neuronx-collectives": PINS["NEURON_COLLECTIVES_VERSION"],
    "aws-neuronx-runtime-lib": PINS["NEURON_RUNTIME_VERSION"],
    # the pin lacks upstream's build hash
    "aws-neuronx-tools": f"{PINS['NEURON_TOOLS_VERSION']}-0123abcd",
}
NEWER = {name: f"99.{version}" for name, version in PACKAGES.items()}  # which nobody asked for
WHEELS = {
    "torch": f"{PINS['NEURON_TORCH_VERSION']}+cpu",
    "torch-neuronx": PINS["NEURON_TORCH_NEURONX_VERSION"],
    "neuronx-cc": PINS["NEURON_CC_VERSION"],
    "neuronx-distributed": PINS["NEURON_DISTRIBUTED_VERSION"],
    "nki": PINS["NEURON_NKI_VERSION"],
}


class Stub(NamedTuple):
    upstream: Upstream
    lock: Path
    arguments: dict[str, str]

    def build(self, target: str, **changed: str) -> Outcome:
        words = self.arguments | changed
        return self.upstream.build(target, *(f"{name}={value}" for name, value in words.items()))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Key, Key]]:
    """The repository's key, and a stranger's."""
    folder = tmp_path_factory.mktemp("keys")
    with made_key(folder / "own") as own, made_key(folder / "other") as other:
        yield own, other


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Key, Key]) -> Iterator[Stub]:
    client()
    own, other = keys
    with upstream(tmp_path_factory.mktemp("stub")) as served:
        installer = make_installer(served.folder, PINS["EFA_VERSION"])
        make_repository(served.folder / "apt", own, PACKAGES, shown=own, newer=NEWER)
        make_repository(served.folder / "forged", other, PACKAGES, shown=own)
        lines = [
            make_wheel(
                served.folder / "neuron", name, version, stub_packages(name.replace("-", "_"))
            )
            for name, version in WHEELS.items()
        ]
        lock = served.context / "docker" / "constraints" / "neuron.txt"
        lock.write_text(real_lock() + "".join(lines))
        yield Stub(
            served,
            lock,
            {
                "EFA_URL": served.url,
                "EFA_SHA256": installer.sha256,
                "NEURON_APT_URL": f"{served.url}/apt",
                "NEURON_APT_KEY": own.fingerprint,
                "NEURON_PIP_INDEX": f"{served.url}/neuron",
                "TORCH_CPU_INDEX": f"{served.url}/neuron",
            },
        )


def test_the_stub_image_has_the_pinned_packages_and_loads_neuron_s_library(stub: Stub) -> None:
    outcome = stub.build("neuron")
    assert outcome.reference, outcome.said
    assert "accel_check.py: neuron: one libfabric, one Open MPI" in outcome.said
    shown = (
        "dpkg-query -W -f '${Package}=${Version}\\n' 'aws-neuronx-*'; "
        "type -P neuron-ls mpirun train cc gcc g++ || true; echo; train --version; "
        "ls /usr/share/muster; "
    )
    loads = (
        "import ctypes, torch_neuronx, muster_collectives.core; "
        "ctypes.CDLL('libnrt.so.1'); ctypes.CDLL('libmpi.so.40')"
    )
    done = client().run(
        "run", "--rm", f"--label={LABEL}={RUN}", "--network=none", outcome.reference,
        "bash", "-ec", f'{shown} python -c "{loads}"; env',
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[:3] == sorted(f"{name}={version}" for name, version in PACKAGES.items())
    assert said[3:7] == [
        "/opt/aws/neuron/bin/neuron-ls",
        "/opt/amazon/openmpi5/bin/mpirun",
        "/opt/venv/bin/train",
        "",  # no compiler
    ]
    assert said[7].startswith("muster ")
    assert said[8:10] == ["licenses.txt", "sbom.cdx.json"]
    forbidden = ("FI_", "RDMAV_", "NEURON_", "LD_")
    assert [line for line in said if line.startswith(forbidden)] == []


@pytest.mark.promise("S14")
def test_a_key_of_another_fingerprint_is_refused(stub: Stub, keys: tuple[Key, Key]) -> None:
    expected = keys[1].fingerprint
    outcome = stub.build("neuron-key", NEURON_APT_KEY=expected)
    assert not outcome.reference
    assert f"must be {expected}" in outcome.said and keys[0].fingerprint in outcome.said


def test_a_stub_repository_that_another_key_signed_is_refused(stub: Stub) -> None:
    outcome = stub.build("neuron", NEURON_APT_URL=f"{stub.upstream.url}/forged")
    assert not outcome.reference
    assert "is not signed by" in outcome.said and "nothing was installed" in outcome.said


def test_a_version_that_the_stub_repository_has_not_is_refused(stub: Stub) -> None:
    """2.30.10 is not a pin of 2.30.10.0: only a build hash may be missing."""
    outcome = stub.build("neuron", NEURON_TOOLS_VERSION="2.30.10")
    assert not outcome.reference
    assert "aws-neuronx-tools must be there once in version 2.30.10; found: none" in outcome.said


def test_without_a_lock_the_image_is_refused_with_the_command_that_makes_one(stub: Stub) -> None:
    text = stub.lock.read_text()
    stub.lock.unlink()
    outcome = stub.build("venv-neuron")
    stub.lock.write_text(text)
    assert not outcome.reference
    assert "docker/constraints/neuron.txt: is not there" in outcome.said
    assert "make lock-neuron" in outcome.said


def test_lock_neuron_makes_a_lock_that_the_stub_image_takes(stub: Stub, tmp_path: Path) -> None:
    """In a copy of the checkout whose indices are stubs; all else comes from the default index, in
    versions that it has had for a while: a package may be there minutes before what it needs is."""
    for part in ("scripts/lock-neuron", "docker/versions.env", "docker/constraints/neuron.in"):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / part, tmp_path / part)
    (tmp_path / ".venv").symlink_to(CHECKOUT / ".venv")
    with (tmp_path / "docker/versions.env").open("a") as file:
        file.writelines(
            f"{name}={stub.arguments[name]}\n" for name in ("NEURON_PIP_INDEX", "TORCH_CPU_INDEX")
        )
    done = subprocess.run(
        [tmp_path / "scripts/lock-neuron"],
        env={**os.environ, "UV_CONSTRAINT": str(CHECKOUT / "docker/constraints/base.txt")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lock = (tmp_path / "docker/constraints/neuron.txt").read_text()
    assert f"torch=={WHEELS['torch']}" in lock and "://" not in lock
    before = stub.lock.read_text()
    stub.lock.write_text(lock)
    outcome = stub.build("venv-neuron")
    stub.lock.write_text(before)
    assert outcome.reference, outcome.said


@pytest.mark.parametrize(
    ("locked", "instead", "sentence"),
    [
        ("torch==", "einops==0.8.2\ntorch==", "no hash for einops==0.8.2"),
        ("nki==", "einops==", "does not lock nki: make lock-neuron"),
    ],
    ids=["no-hash", "no-nki"],
)
def test_a_lock_that_lacks_a_hash_or_a_package_is_refused(
    stub: Stub, locked: str, instead: str, sentence: str
) -> None:
    text = stub.lock.read_text()
    stub.lock.write_text(text.replace(f"\n{locked}", f"\n{instead}"))
    outcome = stub.build("venv-neuron")
    stub.lock.write_text(text)
    assert not outcome.reference
    assert sentence in outcome.said
