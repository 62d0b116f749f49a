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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from scripts.images.inputs import pip_settings

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".cache"
_DEADLINE_S = 900
_NOTHING: Mapping[str, str] = MappingProxyType({})
_AS_IT_IS = ("--no-deps", "--no-build-isolation")


class UnavailableError(Exception):
    """The environment cannot be made on this machine; the message says why."""


class Source(NamedTuple):
    """A package that is compiled in an environment with what is there; `environ`: how. `added`:
    what its installed files are to say besides, by their paths below site-packages."""

    requirement: str
    environ: Mapping[str, str]
    added: Mapping[str, str] = _NOTHING


class _Install(NamedTuple):
    """Arguments of one installation, and its environment."""

    arguments: Sequence[str]
    environ: Mapping[str, str] = _NOTHING
    added: Mapping[str, str] = _NOTHING


def locked_environment(
    name: str, lock: Path, project: Path | None = None, source: Source | None = None
) -> Path:
    """The environment `.cache/<name>` with exactly the packages of `lock`.

    A `project` lies editable beside them, a `source` is compiled there; both are built with what
    the lock holds, and their own requirements are not installed. Made anew when one of them (of
    the project its pyproject.toml) or the interpreter changed. Raises UnavailableError.
    """
    # a lock is whole: what it leaves out on purpose (torch) must not come by a package's wish
    content, installs = lock.read_bytes(), [_Install(["--no-deps", "-r", str(lock)])]
    if project is not None:
        content += (project / "pyproject.toml").read_bytes()
        installs.append(_Install([*_AS_IT_IS, "-e", str(project)]))
    if source is not None:
        content += repr(source).encode()
        # without a cache: what it is compiled with is no part of the key of uv's
        how = [*_AS_IT_IS, "--no-cache", "--no-binary", ":all:", source.requirement]
        installs.append(_Install(how, source.environ, source.added))
    return _made(name, hashlib.sha256(content + sys.version.encode()).hexdigest(), *installs)


def wheel_environment(name: str, wheel: Path) -> Path:
    """The environment `.cache/<name>` with one wheel and nothing else. Raises UnavailableError."""
    stamp = hashlib.sha256(wheel.read_bytes() + sys.version.encode()).hexdigest()
    return _made(name, stamp, _Install(["--no-deps", str(wheel)]))


def compile_modules(place: Path) -> None:
    """All of an environment's, where starts are measured; else those that are imported are kept by
    their first import, and the rest is half a minute's work for nobody."""
    _run([str(place / "bin" / "python"), "-m", "compileall", "-q", str(place / "lib")], check=False)


def build_wheel(project: Path, folder: Path) -> Path:
    """Builds the project's wheel into `folder` (emptied first) and returns its path."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(
        [_uv(), "build", "--wheel", "--no-build-isolation", "--out-dir", str(folder), str(project)]
    )
    return next(folder.glob("*.whl"))


def _made(name: str, stamp: str, *installs: _Install) -> Path:
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
        path = os.pathsep.join([str(place / "bin"), os.environ.get("PATH", os.defpath)])
        for arguments, environ, added in installs:
            _run(
                [_uv(), "pip", "install", "--python", python, *arguments],
                environ={"PATH": path, **environ},
            )
            for module, text in added.items():
                (file,) = place.glob(f"lib/*/site-packages/{module}")
                file.write_text(file.read_text() + text)
        mark.write_text(stamp)
    return place


def _uv() -> str:
    found = Path(sys.prefix) / "bin" / "uv"
    if not found.is_file():
        raise UnavailableError(f"no uv in {sys.prefix}: run make setup")
    return str(found)


def _run(argv: Sequence[str], check: bool = True, environ: Mapping[str, str] = _NOTHING) -> None:
    environ = {
        **os.environ, **environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never",
    }  # fmt: skip
    links = environ.get("UV_FIND_LINKS") or pip_settings().get("find-links", "")
    if links:  # uv does not read pip's configuration
        environ["UV_FIND_LINKS"] = links.replace("\n", ",")
    try:
        done = subprocess.run(
            argv, env=environ, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired as late:
        raise UnavailableError(f"{Path(argv[0]).name} {argv[1]}: {late}") from late
    if check and done.returncode:
        last = " / ".join(done.stderr.strip().splitlines()[-8:])
        raise UnavailableError(
            f"{Path(argv[0]).name} {argv[1]} ended with {done.returncode}: {last}"
        )
