"""The wheels of a release: made for two processors, old systems, and the same bits.

The core of the other processor plays below an emulator.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.collectives.driving import COMPILE_S, PLAY_S, Build, Driver, built, sound

CHECKOUT = Path(__file__).resolve().parents[2]
TOOLS = CHECKOUT / ".cache" / "release" / "bin" / "python"  # made by scripts/release-wheels
CORE = "muster_collectives/_native/libmuster_core.so"
MACHINES = ("x86_64", "aarch64")
PLAYS = (
    "ops aa 10", "ops aaa 6", "small aaa 100", "direct aaa 5", "messages aa 10", "ops ab 6",
    "small ab 40", "messages aab 6", "mismatch aaa", "leave aab",
)  # fmt: skip
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


@pytest.fixture(scope="module")
def emulated(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """The driver for aarch64, which needs nothing of a system: it runs in an emulator."""
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("no qemu-aarch64: apt-get install qemu-user-static")
    compiler = (str(TOOLS), "-m", "ziglang", "cc", "-target", "aarch64-linux-musl")
    flags = ("-static", "-fno-sanitize=all")
    build = Build(flags, compiler=compiler, runner=(emulator,))
    return built(tmp_path_factory.mktemp("aarch64"), build)


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
def test_the_core_of_a_release_has_the_bits_of_the_kernels_tests(
    wheels: Path, tmp_path: Path
) -> None:
    (wheel,) = wheels.glob(f"muster_parallel-*_{platform.machine()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        core = archive.extract(CORE, tmp_path)
    names = ("test_collectives_kernels.py", "test_collectives_core.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         *(str(CHECKOUT / "tests" / "process" / name) for name in names)],
        env={**os.environ, "COLLECTIVES_CORE": core}, cwd=CHECKOUT, capture_output=True, text=True,
        check=False, timeout=BUILD_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.timeout(BUILD_S + COMPILE_S + PLAY_S)
@pytest.mark.parametrize("words", PLAYS)
def test_the_core_plays_on_aarch64_below_an_emulator(emulated: Driver, words: str) -> None:
    sound(emulated.play(words))
