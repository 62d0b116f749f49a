"""The wheels of a release: made for two processors, old systems, and the same bits.

The core of the other processor plays in test_aarch64.py.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
CORE = "muster_collectives/_native/libmuster_core.so"
MACHINES = ("x86_64", "aarch64")
BUILD_S = 900

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_S)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [CHECKOUT / "scripts" / "release-wheels", folder], capture_output=True, text=True,
        check=False, timeout=BUILD_S,
    )  # fmt: skip
    if "could not be installed" in done.stderr:
        pytest.skip(f"no compiler of releases here: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("machine", MACHINES)
def test_a_release_has_a_core_for_each_processor_and_for_systems_since_2014(
    wheels: Path, machine: str
) -> None:
    """The script asks auditwheel and refuses what needs more."""
    (wheel,) = wheels.glob(f"muster_parallel-*-py3-none-manylinux_2_17_{machine}.whl")
    assert CORE in zipfile.ZipFile(wheel).namelist()
    core = zipfile.ZipFile(wheel).read(CORE)
    assert core[18:20] == {"x86_64": b"\x3e\x00", "aarch64": b"\xb7\x00"}[machine]  # e_machine
    assert len(core) < 1 << 20, "debug information is no part of a release"


def test_the_rest_of_a_release_runs_everywhere(wheels: Path) -> None:
    names = sorted(path.name.split("-")[0] for path in wheels.glob("*-py3-none-any.whl"))
    assert names == ["muster_compat", "muster_training"]


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no release for this processor")
def test_the_core_of_a_release_has_the_bits_of_every_verb(wheels: Path, tmp_path: Path) -> None:
    """With the kernels that it chooses on this machine: a release exports no others."""
    (wheel,) = wheels.glob(f"muster_parallel-*_{platform.machine()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        core = archive.extract(CORE, tmp_path)
    tests = CHECKOUT / "tests/collectives/process/test_collectives_core.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "COLLECTIVES_CORE": core}, cwd=CHECKOUT, capture_output=True, text=True,
        check=False, timeout=BUILD_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
