"""Tiny Python packages and environments, made in milliseconds and without any network."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SETUP = """\
from setuptools import setup
setup(name="{name}", version="{version}", py_modules={modules!r})
"""
HATCH = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
dependencies = {requires!r}

[tool.hatch.build.targets.wheel]
only-include = ["{package}"]
"""


def make_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """A wheel with one module whose VERSION says which it is, and a program of the same name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n\n\ndef main() -> None:\n    print(VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


def make_environment(folder: Path, pip: bool = True) -> Path:
    """A virtual environment of its own; returns its interpreter.

    It sees pip and the build tools of the tests' environment, which it cannot change.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    if pip:
        site = site_packages(folder / "bin" / "python")
        (site / "tools.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parents[1] / "lib" / version / "site-packages"


def output_of(python: Path, code: str, environ: Mapping[str, str]) -> str:
    """What the interpreter prints for `code`."""
    done = subprocess.run(
        [str(python), "-c", code],
        env=dict(environ),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()
