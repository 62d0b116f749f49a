"""A machine without a C compiler: the package can be installed, works without its core, says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collectives.support.jobs import CHECKOUT, clean, job
from tests.collectives.tools.test_tools import tool

pytestmark = pytest.mark.dev
PROJECT = CHECKOUT / "toolkit" / "parallel"
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
    assert (target / "muster_collectives" / "pure" / "communicator.py").exists()
    assert not (target / "muster_collectives" / "_native").exists()
    return target


def test_what_was_installed_without_a_compiler_works_and_says_so_once(installed: Path) -> None:
    environ = {"PYTHONPATH": f"{installed}{os.pathsep}{CHECKOUT}", "COLLECTIVES_CORE": ""}
    with job("core.plain_worker", 3, environ=environ) as started:
        ends = started.ends()
    said = clean(ends)
    assert all(each["right"] and each["transport"] == "pure" for each in said)
    assert all(Path(each["place"]).is_relative_to(installed) for each in said)
    lines = [line for end in ends for line in end.err.splitlines() if line.strip()]
    assert len(lines) == 1, lines  # of three groups on three ranks
    assert "without the compiled core, slowly" in lines[0] and "C compiler" in lines[0]


def test_doctor_says_what_is_missing_and_the_cure(installed: Path) -> None:
    environ = {"PYTHONPATH": str(installed), "COLLECTIVES_CORE": ""}
    said = tool("doctor", environ=environ, code=1)
    assert "rank 0 has no compiled core" in said
    assert "Fix: install muster-parallel where there is a C compiler" in said
