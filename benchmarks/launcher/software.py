"""What is measured: our wheel and its peers, each in an environment of its own below `.cache/`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.venvs import (
    CACHE,
    CHECKOUT,
    build_wheel,
    compile_modules,
    locked_environment,
    wheel_environment,
)

INCUMBENT = "sagemaker-training 5.1.4"
TORCHX = "torchx"
TORCHRUN = "torchrun"

# Runs inside the measured environment, so it may use nothing but the standard library.
_SIZE = """
import importlib.metadata as metadata, json, os, re, sys
def plain(name): return re.sub(r"[-_.]+", "-", name).lower()
installed = {plain(d.metadata["Name"]): d for d in metadata.distributions()}
todo, seen = [plain(sys.argv[1])], set()
while todo:
    name = todo.pop()
    if name in seen or name not in installed: continue
    seen.add(name)
    for line in installed[name].requires or ():
        if "extra ==" not in line: todo.append(plain(re.match(r"[\\w.-]+", line)[0]))
FOLDERS = "commands|local|submit|report|sdk|pytest_plugin|rank_bootstrap/debug"
DESK = rf"/muster/({FOLDERS})|\\.dist-info/"
files, caches = set(), set()
for name in seen:
    for entry in installed[name].files or ():
        path = os.path.realpath(installed[name].locate_file(entry))
        stem = os.path.splitext(os.path.basename(path))[0]
        caches.add(f"{os.path.dirname(path)}/__pycache__/{stem}.{sys.implementation.cache_tag}.pyc")
        if "/__pycache__/" not in path: files.add(path)
size = lambda paths: sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
desk = [path for path in files if re.search(DESK, path)]
print(json.dumps([size(files), size(caches), size(desk), sorted(seen)]))
"""


class Software(NamedTuple):
    """Folders of executables. `muster` is the built wheel's, as a user has it; `development` has
    torch beside it."""

    muster: Path
    incumbent: Path
    torchx: Path
    development: Path


class Size(NamedTuple):
    """Bytes of a distribution and all that it requires; `caches`: what Python compiles of it;
    `desk`: of these files, those that no container of a job imports."""

    files: int
    caches: int
    desk: int
    distributions: tuple[str, ...]


def software() -> Software:
    """Makes what is not there yet. Raises UnavailableError when a peer cannot be had."""
    return Software(
        launcher_of(CHECKOUT, "bench-muster"),
        _peer("incumbent"),
        _peer("peers"),
        Path(sys.prefix) / "bin",
    )


def _peer(name: str) -> Path:
    return _compiled(locked_environment(name, CHECKOUT / "constraints" / f"{name}.txt"))


def _compiled(environment: Path) -> Path:
    """Its executables; as after pip, none pays for compiling its modules at a start."""
    compile_modules(environment)
    return environment / "bin"


def launcher_of(checkout: Path, name: str) -> Path:
    """The executables of the launcher's wheel of a checkout, in the environment `.cache/NAME`."""
    wheel = build_wheel(checkout / "toolkit" / "launcher", CACHE / f"{name}-wheel")
    return _compiled(wheel_environment(name, wheel))


def installed_size(bin_folder: Path, distribution: str) -> Size:
    done = subprocess.run(
        [str(bin_folder / "python"), "-I", "-c", _SIZE, distribution],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    files, caches, desk, names = json.loads(done.stdout)
    return Size(files, caches, desk, tuple(names))
