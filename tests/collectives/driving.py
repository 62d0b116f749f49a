"""The C driver and the core as one program: how it is built, and its plays.

It plays ranks as threads of one process over one mapping of the segment (driver.h).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "toolkit" / "parallel" / "csrc"
DRIVER = ("driver.c", "driver_ops.c", "driver_faults.c", "driver_wire.c")
ONE_MAPPING = ("-Dmmap=driver_mmap", "-Dmunmap=driver_munmap")
OTHER_KERNELS = ("kernels_avx2", "kernels_avx512", "kernels_neon")  # not run by the plain core
COMPILE_S, PLAY_S = 300, 100
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Build(NamedTuple):
    """`flags` go to every source and to the linker, `environ` to the program, which `runner`
    starts; `plain`: the kernels of other instruction sets will not run, which saves time."""

    flags: tuple[str, ...]
    environ: Mapping[str, str] = _NOTHING
    compiler: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    plain: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        return self.compiler or (os.environ.get("CC", "gcc"),)


class Driver(NamedTuple):
    """A built driver and how it is run."""

    path: Path
    build: Build

    def play(self, words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, **self.build.environ}
        return subprocess.run(
            [*self.build.runner, str(self.path), *words.split()], env=environ,
            capture_output=True, text=True, timeout=PLAY_S, check=False,
        )  # fmt: skip


def sound(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}\n{done.stderr[-6000:]}"


def built(folder: Path, build: Build) -> Driver:
    """The driver and the core; skips where the compiler cannot make such programs."""
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if shutil.which(build.command[0]) is None:
        pytest.skip(f"no C compiler ({build.command[0]})")
    tried = subprocess.run(
        [*build.command, *build.flags, str(probe), "-o", str(folder / "probe")],
        capture_output=True, text=True, check=False, timeout=COMPILE_S,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"{build.command[0]} lacks {build.flags[0]}: {tried.stderr.strip()[-200:]}")
    sources = [*sorted(CORE.glob("*.c")), *(HERE / name for name in DRIVER)]
    objects = [folder / f"{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(compiled, build), sources, objects))
    return Driver(linked(build, objects, folder / "driver"), build)


def compiled(build: Build, source: Path, target: Path) -> None:
    how = ["-O1", *build.flags, *(() if source.parent == HERE else ONE_MAPPING)]
    if build.plain and source.stem in OTHER_KERNELS:
        how = ["-O0", *ONE_MAPPING]
    run([*build.command, "-std=c11", "-g", f"-I{CORE}", *how, "-c", str(source), "-o", str(target)])


def linked(build: Build, objects: Sequence[Path], target: Path) -> Path:
    names = map(str, objects)
    run([*build.command, *build.flags, *names, "-o", str(target), "-lm", "-pthread"])
    return target


def run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=COMPILE_S)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr[-3000:]}"
