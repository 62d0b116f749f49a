"""An unprivileged user who runs jobs: where he may write, and which Python he may start."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

import muster

NOBODY = 65534
SET_IDS = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}")
BECOME_NOBODY = (*SET_IDS, "--clear-groups")


def nobody_may(*command: str) -> bool:
    """Whether a command ends with 0 as an unprivileged user, started by one: setpriv itself still
    has the powers of root when it looks for a program."""
    done = subprocess.run([*BECOME_NOBODY, "env", *command], capture_output=True, check=False)
    return done.returncode == 0


def skip_where_hidden(path: str | Path) -> None:
    """Skips the test where an unprivileged user may not start that program or enter that folder:
    in a checkout below a folder that is its owner's alone."""
    if not nobody_may("test", "-x", str(path)):
        pytest.skip(f"{path} lies where an unprivileged user may not go")


@cache
def packages_for_nobody() -> str:
    """A folder with muster in it that an unprivileged user may read: the checkout's, or a copy for
    as long as the tests run where the checkout lies below a folder that is its owner's alone."""
    package = Path(muster.__file__).parent
    if nobody_may("test", "-r", str(package / "__init__.py")):
        return str(package.parent)
    copy = Path(tempfile.mkdtemp(prefix="muster-test-packages-", dir="/var/tmp"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    shutil.copytree(package, copy / "muster", ignore=shutil.ignore_patterns("__pycache__"))
    return str(copy)


def as_nobody(*packages: str, groups: str = "--clear-groups") -> tuple[str, ...]:
    """What stands before the command of an unprivileged user without a home.

    packages: folders that he imports from, beside muster's. groups: as setpriv has it.
    """
    path = os.pathsep.join((packages_for_nobody(), *packages))
    return (*SET_IDS, groups, "env", f"PYTHONPATH={path}", "HOME=/nonexistent")


@contextmanager
def home_of_nobody(fill: Callable[[Path], object]) -> Iterator[Path]:
    """A folder that an unprivileged user may write to and reach, with what `fill` puts there."""
    home = Path(tempfile.mkdtemp(prefix="muster-test-", dir="/var/tmp"))
    home.chmod(0o755)
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
        if shutil.which(python) and nobody_may(python, "-c", code):
            return python
    pytest.skip("no Python here that an unprivileged user may start")
