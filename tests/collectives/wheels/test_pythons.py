"""The core's entry has functions of the interpreter by value: it works in the other Pythons too."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from muster_collectives.core import Code
from tests.collectives.support.jobs import clean, job

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"  # what all other tests play
VERSIONS = [each for each in ("3.10", "3.11", "3.12", "3.13") if each != OWN]


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_errors_and_signals_work_in_every_python(version: str) -> None:
    python = python_of(version)
    if not python:
        pytest.skip(f"no Python {version} on this machine")
    with job("wheels.entry_worker", 2, python=python) as started:
        said = clean(started.ends())
    for each in said:
        assert each["python"].startswith(f"{version}."), each
        assert each["right"] and each["kept"], each
    assert [each["interrupted"] for each in said] == ["Rung", "AbortedError"]
    given = str(int(Code.EINVAL))
    wrong = ["TypeError", "TypeError", given, "OverflowError"]
    wrong += ["TypeError", "OverflowError", given] * 2
    assert [each["refused"] for each in said] == [wrong, wrong]


def python_of(version: str) -> str:
    """Of this machine: on the path, or one of pyenv's; "" without."""
    home = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    pattern = os.path.join(home, "versions", f"{version}.*", "bin", "python")
    for found in (shutil.which(f"python{version}"), *glob.glob(pattern)):
        # pyenv's shims are there for versions that they cannot start
        words = [found, "-c", ""]
        if found and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return found
    return ""
