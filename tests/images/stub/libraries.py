"""Shared libraries with nothing in them but a name and what they need: enough for the linker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def library(path: Path, soname: str = "", needs: tuple[Path, ...] = ()) -> Path:
    """Makes `path`, called `soname` inside ("" for its file's name), which needs those. The test
    is skipped where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make the stub libraries with")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text("int stub;\n")
    name = f"-Wl,-soname,{soname or path.name}"
    subprocess.run(
        [compiler, "-shared", "-nostdlib", "-fPIC", "-Wl,--no-as-needed", name,
         "-o", str(path), str(source), *(str(one) for one in needs)],
        check=True, timeout=60,
    )  # fmt: skip
    source.unlink()
    return path


def linked(path: Path, soname: str, needs: tuple[Path, ...] = ()) -> Path:
    """The same, with a link by its soname beside it, as packages have."""
    library(path, soname, needs)
    (path.parent / soname).symlink_to(path.name)
    return path
