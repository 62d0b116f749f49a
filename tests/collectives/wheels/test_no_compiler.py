"""A machine without a C compiler: the package can be installed, and says what it lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectives.support.jobs import CHECKOUT, job
from tests.collectives.tools.test_tools import tool

pytestmark = pytest.mark.dev
PROJECT = CHECKOUT / "toolkit" / "parallel"
CORE = "muster_collectives/_native/libmuster_core.so"
_OURS = ("MUSTER_CC", "MUSTER_CORE", "MUSTER_TARGET", "MUSTER_PLATFORM", "CC", "CXX")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the sources were installed with no compiler on the path."""
    folder = tmp_path_factory.mktemp("no-compiler")
    # of a copy: the build of a folder takes away the core that an editable install has left there
    sources = shutil.copytree(
        PROJECT, folder / "sources", ignore=shutil.ignore_patterns("_native", "__pycache__")
    )
    empty, target = folder / "bin", folder / "installed"
    empty.mkdir()
    environ = {name: value for name, value in os.environ.items() if name not in _OURS}
    done = subprocess.run(
        [Path(sys.prefix) / "bin" / "uv", "pip", "install", "--quiet", "--python", sys.executable,
         "--no-deps", "--no-build-isolation", "--no-cache", "--target", target, sources],
        env={**environ, "PATH": str(empty), "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (target / "muster_collectives" / "core.py").exists()
    assert not (target / "muster_collectives" / "_native").exists()
    return target


def test_every_rank_of_what_was_installed_without_a_compiler_says_what_is_missing_and_the_fix(
    installed: Path,
) -> None:
    environ = {"PYTHONPATH": f"{installed}{os.pathsep}{CHECKOUT}", "COLLECTIVES_CORE": ""}
    with job("core.locality_worker", 3, environ=environ) as started:
        ends = started.ends()
    for end in ends:
        assert end.code == 1
        *_, last, fix = end.err.splitlines()
        assert last.endswith(f"there is no compiled core at {installed / CORE}"), end.err
        assert "CoreError: group 'world0': rank 0 cannot take part (ranks 0, 1 and 2" in last
        assert fix.startswith("  Fix: install muster-parallel") and "C compiler" in fix


def test_doctor_says_what_is_missing_and_the_fix(installed: Path) -> None:
    environ = {"PYTHONPATH": str(installed), "COLLECTIVES_CORE": ""}
    said = tool("doctor", environ=environ, code=1)
    assert f"doctor: there is no compiled core at {installed / CORE}\n  Fix: install" in said
