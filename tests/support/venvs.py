"""Environments of other software below `.cache/`, made once from a locked file and then reused.

The peers of conformance and benchmarks live here, so that nothing of theirs can reach ours.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache"
_DEADLINE_S = 900


class UnavailableError(Exception):
    """The environment cannot be made on this machine; the message says why."""


def locked_environment(name: str, lock: Path) -> Path:
    """The environment `.cache/<name>` with exactly the packages of `lock`.

    Made anew when the lock or the interpreter changed. Raises UnavailableError.
    """
    stamp = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    return _made(name, stamp, ["-r", str(lock)])


def wheel_environment(name: str, wheel: Path) -> Path:
    """The environment `.cache/<name>` with one wheel and nothing else. Raises UnavailableError."""
    stamp = hashlib.sha256(wheel.read_bytes() + sys.version.encode()).hexdigest()
    return _made(name, stamp, ["--no-deps", str(wheel)])


def build_wheel(project: Path, folder: Path) -> Path:
    """Builds the project's wheel into `folder` (emptied first) and returns its path."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(
        [_uv(), "build", "--wheel", "--no-build-isolation", "--out-dir", str(folder), str(project)]
    )
    return next(folder.glob("*.whl"))


def _made(name: str, stamp: str, packages: Sequence[str]) -> Path:
    place, mark = CACHE / name, CACHE / f"{name}.stamp"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may want it at the same time
        if place.is_dir() and mark.is_file() and mark.read_text() == stamp:
            return place
        mark.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        _run([_uv(), "venv", "--python", sys.executable, str(place)])
        python = str(place / "bin" / "python")
        _run([_uv(), "pip", "install", "--python", python, *packages])
        # as pip does: a peer must not pay for compiling its modules at every start
        _run([python, "-m", "compileall", "-q", str(place / "lib")], check=False)
        mark.write_text(stamp)
    return place


def _uv() -> str:
    found = Path(sys.prefix) / "bin" / "uv"
    if not found.is_file():
        raise UnavailableError(f"no uv in {sys.prefix}: run make setup")
    return str(found)


def _run(argv: Sequence[str], check: bool = True) -> None:
    environ = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    links = environ.get("UV_FIND_LINKS") or _pip_setting("global.find-links")
    if links:  # uv does not read pip's configuration
        environ["UV_FIND_LINKS"] = links.replace("\n", ",")
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
    )
    if check and done.returncode:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise UnavailableError(
            f"{Path(argv[0]).name} {argv[1]} ended with {done.returncode}: {last}"
        )


def _pip_setting(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", name],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout.strip() if done.returncode == 0 else ""
