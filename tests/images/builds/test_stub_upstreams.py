"""The cuda-efa and neuron images, built against STUB upstreams: a stub of AWS's EFA installer, of
Neuron's repositories, and of the CUDA wheels. They prove order, flags, refusals, paths and the
environment of docker/Dockerfile; that the real software works on real hardware they cannot prove
(docs/how-to/images/accelerators.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.images.pins import CHECKOUT, pins
from tests.images.stub.builds import Outcome, Upstream, upstream
from tests.images.stub.efa import FLAGS, OLD, Installer, make_installer
from tests.images.stub.libraries import linked
from tests.images.stub.wheels import make_wheel, real_lock, stub_packages, stub_torch
from tests.support.images import LABEL, RUN, client

pytestmark = [pytest.mark.dev, pytest.mark.timeout(1200)]
INSTALL = CHECKOUT / "docker" / "install"
ALWAYS = ["-y", "--skip-kmod", "--skip-limit-conf", "--no-verify", "--mpi=openmpi5"]
VERSION = pins()["EFA_VERSION"]
LOADED = ("libfabric.so.1", "libnccl.so.2", "libnccl-net.so", "libcudart.so", "libmpi.so.40")


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    client()
    with upstream(tmp_path_factory.mktemp("stub")) as served:
        lock = served.context / "docker" / "constraints" / "cuda-efa.txt"
        lock.write_text(real_lock() + cuda_wheels(served.folder, served.context.parent))
        yield served


def cuda_wheels(served: Path, work: Path) -> str:
    """Stub wheels of torch, of what it needs, and of CUDA's libraries; their lines of the lock."""
    cudart = linked(work / "cu13/libcudart.so.13.0", "libcudart.so.13").read_bytes()
    nccl = linked(work / "nccl/libnccl.so.2.0", "libnccl.so.2").read_bytes()
    index = served / "simple"
    small = ("numpy", "sympy", "networkx", "mpmath", "setuptools")
    return "".join(
        [
            make_wheel(index, "torch", pins()["TORCH_VERSION"], stub_torch()),
            make_wheel(
                index, "nvidia-cuda-runtime", "13.0", {"nvidia/cu13/lib/libcudart.so.13": cudart}
            ),
            make_wheel(index, "nvidia-nccl-cu13", "2.0", {"nvidia/nccl/lib/libnccl.so.2": nccl}),
            *(make_wheel(index, name, "1.0", stub_packages(name)) for name in small),
        ]
    )


def build(stub: Upstream, target: str, installer: Installer, sha256: str = "") -> Outcome:
    return stub.build(
        target,
        f"EFA_URL={stub.url}",
        f"EFA_VERSION={installer.version}",
        f"EFA_SHA256={sha256 or installer.sha256}",
    )


@pytest.fixture(scope="module")
def cuda_efa(stub: Upstream) -> str:
    """The stub image with the pinned version of the installer."""
    outcome = build(stub, "cuda-efa", make_installer(stub.folder, VERSION))
    assert outcome.reference, outcome.said
    return outcome.reference


def inside(image: str, *argv: str, before: str = "") -> tuple[int, str]:
    """Exit code and words of a program in a container of the image, with docker/install at /mnt.
    `before`: shell commands that change the container first."""
    script = f'{before}\nexec "$@"' if before else 'exec "$@"'
    done = client().run(
        "run", "--rm", f"--label={LABEL}={RUN}", f"--volume={INSTALL}:/mnt:ro", "--network=none",
        "--entrypoint=/bin/bash", image, "-ec", script, "bash", *argv,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def flags(image: str) -> list[str]:
    code, said = inside(image, "cat", FLAGS)
    assert code == 0, said
    return said.split()


def test_stub_installer_gets_the_flags_of_its_version(cuda_efa: str) -> None:
    assert flags(cuda_efa) == [*ALWAYS, "--disable-ngc"]


def test_stub_image_loads_by_name_what_nccl_and_mpi_ask_for(cuda_efa: str) -> None:
    program = f"import ctypes, muster_collectives.core; [ctypes.CDLL(n) for n in {LOADED!r}]"
    code, said = inside(cuda_efa, "env", "-i", "/opt/venv/bin/python", "-c", program)
    assert code == 0, said


def test_stub_image_sets_the_driver_s_variables_and_no_transport_s(cuda_efa: str) -> None:
    code, said = inside(cuda_efa, "env")
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert code == 0
    assert found["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert found["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    forbidden = ("FI_", "RDMAV_", "NCCL_", "OFI_", "LD_")
    assert [name for name in found if name.startswith(forbidden)] == []


def test_stub_image_has_the_installer_s_mpirun_only_and_train_finds_it(cuda_efa: str) -> None:
    code, said = inside(cuda_efa, "bash", "-c", "type -ap mpirun; train --version; which prted")
    assert code == 0, said
    first, version, daemon = said.splitlines()
    assert (first, daemon) == ("/opt/amazon/openmpi5/bin/mpirun", "/opt/amazon/openmpi5/bin/prted")
    assert version.startswith("muster ")


def test_stub_image_can_compile_for_torch_compile(cuda_efa: str) -> None:
    program = "#include <Python.h>\nint main() { return 0; }\n"
    compiled = f"printf '{program}' | g++ -x c++ -I/usr/include/python3.11 -fsyntax-only -"
    code, said = inside(cuda_efa, "bash", "-c", compiled)
    assert code == 0, said


def test_stub_build_leaves_nothing_of_the_installer_and_of_apt(cuda_efa: str) -> None:
    code, said = inside(cuda_efa, "find", "/tmp", "/var/lib/apt/lists", "-mindepth", "1")
    assert (code, said) == (0, "")
    assert inside(cuda_efa, "test", "-e", "/nvidia")[0] == 1  # moved, not copied twice
    code, said = inside(cuda_efa, "find", "/opt/venv", "-name", "*of_torch*")
    assert (code, said) == (0, ""), "torch's own tests and test programs"


@pytest.mark.promise("S14")
def test_a_stub_installer_of_another_checksum_is_refused_before_it_is_unpacked(
    stub: Upstream,
) -> None:
    installer = make_installer(stub.folder, "1.50.1")
    outcome = build(stub, "cuda-efa-system", installer, sha256="0" * 64)
    assert not outcome.reference
    assert f"its sha256 is {installer.sha256}, expected {'0' * 64}" in outcome.said
    assert "nothing was unpacked" in outcome.said
    assert "efa.sh: installer" not in outcome.said


def test_the_older_stub_installer_s_flags_and_plugin_path_are_known(stub: Upstream) -> None:
    outcome = build(stub, "cuda-efa", make_installer(stub.folder, "1.43.2", plugin=OLD))
    assert outcome.reference, outcome.said
    assert flags(outcome.reference) == ALWAYS
    program = "import ctypes; ctypes.CDLL('libnccl-net.so')"
    code, said = inside(outcome.reference, "python", "-c", program)
    assert code == 0, said


def test_versions_are_compared_as_versions_and_two_stub_libfabrics_are_refused(
    stub: Upstream,
) -> None:
    """1.100.0 is newer than 1.48.0, which it is not as a string."""
    second = "/opt/amazon/other/libfabric.so.1"
    installer = make_installer(stub.folder, "1.100.0", extra_libfabric=second)
    outcome = build(stub, "cuda-efa", installer)
    assert not outcome.reference
    assert f"installer 1.100.0 with {' '.join(ALWAYS)} --disable-ngc" in outcome.said
    said = "exactly one libfabric belongs into the image; found 2"
    assert said in outcome.said and second in outcome.said


JOB = """
from mpi4py import MPI
maps = open("/proc/self/maps").read()
assert "/opt/amazon/openmpi5/lib/libmpi.so.40" in maps
assert "/opt/amazon/efa/lib/libfabric.so.1" in maps
world = MPI.COMM_WORLD
print(f"rank={world.rank} sum={world.allreduce(world.rank + 1)}", flush=True)
"""


def test_mpi_jobs_of_two_hosts_run_with_open_mpi_at_the_installer_s_path(
    cuda_efa: str, tmp_path: Path
) -> None:
    """Real Open MPI: `train` finds it on PATH on both hosts, mpi4py by the linker."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    host = {"DOCKER_HOST": client().host} if client().host else {}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "muster", "local", str(script), "--hosts", "2"),
            *("--processes-per-host", "2", "--distribution", "mpi", "--timeout", "120"),
            *("--isolation", "docker", "--image", cuda_efa, "--output", str(tmp_path / "run")),
        ],
        capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | host,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert [f"rank={rank} sum=10" in said for rank in range(4)] == [True] * 4, said


FABRIC = "/opt/amazon/efa/lib/libfabric.so.1.30.0"
NVIDIA = "/opt/venv/lib/python3.11/site-packages/nvidia"


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (f"cp {FABRIC} {NVIDIA}/libfabric-0123abcd.so.1", "exactly one libfabric"),
        ("rm /opt/amazon/efa/lib/*; ldconfig", "exactly one libfabric"),
        (f"cp {NVIDIA}/nccl/lib/libnccl.so.2 /usr/lib/libnccl.so.2.9", "exactly one libnccl"),
        ("cp -a /opt/amazon/openmpi5/bin/mpirun /opt/venv/bin/", "exactly one mpirun"),
        ("cp /opt/amazon/openmpi5/lib/libmpi.so.40 /usr/lib/", "exactly one Open MPI library"),
        (f"rm {FABRIC}; ln -s gone {FABRIC}; ldconfig", "needs libfabric.so.1"),
        ("rm /usr/lib/libnccl-net.so; ldconfig", "libnccl-net.so cannot be loaded"),
        (f"rm {NVIDIA}/cu13/lib/libcudart.so; ldconfig", "libcudart.so cannot be loaded"),
    ],
)
def test_a_stub_image_whose_libraries_clash_or_lack_is_refused(
    cuda_efa: str, harm: str, sentence: str
) -> None:
    code, said = inside(cuda_efa, "python3", "/mnt/accel_check.py", "cuda-efa", before=harm)
    assert code == 1 and sentence in said, said


def test_the_stub_image_as_it_is_passes_the_same_check(cuda_efa: str) -> None:
    code, said = inside(cuda_efa, "python3", "/mnt/accel_check.py", "cuda-efa")
    assert code == 0, said


def test_a_stub_image_without_nccl_s_plugin_is_refused_with_what_was_found(cuda_efa: str) -> None:
    harm = "mv /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so /opt/amazon/libnccl-net-aws.so"
    code, said = inside(cuda_efa, "/mnt/cuda-libs.sh", before=harm)
    assert code == 1 and "found: /opt/amazon/libnccl-net-aws.so" in said, said
