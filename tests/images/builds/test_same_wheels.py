"""Wheels that are built twice from the same sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.images.pins import CHECKOUT


@pytest.mark.promise("S14")
@pytest.mark.timeout(600)
def test_a_wheel_that_is_built_twice_is_the_same(tmp_path: Path) -> None:
    """A release that changes nothing uploads nothing."""
    for package in ("launcher", "parallel"):
        built = []
        for number in range(2):
            out = tmp_path / package / str(number)
            words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
            subprocess.run(
                [sys.executable, *words], cwd=CHECKOUT / "toolkit" / package,
                check=True, capture_output=True, timeout=240,
            )  # fmt: skip
            (wheel,) = out.glob("*.whl")
            built.append(wheel.read_bytes())
        assert built[0] == built[1]
