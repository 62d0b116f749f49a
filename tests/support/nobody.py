"""An unprivileged user who runs jobs: where he may write, and which Python he may start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import muster

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("env", f"PYTHONPATH={Path(muster.__file__).parents[1]}", "HOME=/nonexistent"),
)


@contextmanager
def home_of_nobody(fill: Callable[[Path], object]) -> Iterator[Path]:
    """A folder that an unprivileged user may write to and reach, with what `fill` puts there."""
    home = Path("/var/tmp") / f"muster-test-{os.getpid()}"
    home.mkdir()
    try:
        fill(home)
        for path in (home, *home.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        yield home
    finally:
        shutil.rmtree(home)


def readable_python() -> str:
    """An interpreter that an unprivileged user may start, of a version that muster runs on."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 10))"
        command = [*AS_NOBODY, python, "-c", code]
        if shutil.which(python) and subprocess.run(command, check=False).returncode == 0:
            return python
    pytest.skip("no Python here that an unprivileged user may start")
