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
CORE = HERE.parents[2] / "toolkit" / "parallel" / "csrc"
COMPILING = ("-std=c11", "-g1", "-O1", f"-I{CORE}", "-Dmmap=driver_mmap", "-Dmunmap=driver_munmap",
             "-Dprocess_vm_readv=driver_readv")  # fmt: skip
# what the system says of a processor with each instruction set (csrc/kernels/isa_choose.c)
ISA_FLAGS = {
    "plain": (),
    "avx2": ("avx2", "f16c"),
    "avx512": ("avx2", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl"),
}
COMPILE_S, PLAY_S, EMULATED_S = 300, 100, 600
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Build(NamedTuple):
    """`flags` go to every source and to the linker, `environ` to the program, which `runner`
    starts; `at_once`: the compiler takes all sources together and sees to its own processes."""

    flags: tuple[str, ...]
    environ: Mapping[str, str] = _NOTHING
    compiler: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    at_once: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        return self.compiler or (os.environ.get("CC", "gcc"),)


class Driver(NamedTuple):
    """A built driver and how it is run."""

    path: Path
    build: Build

    def play(
        self, words: str, isa: str = "", limit_s: float = PLAY_S
    ) -> subprocess.CompletedProcess[str]:
        """`isa`: the instruction set of the kernels; the driver refuses to play with another."""
        environ = {**os.environ, **self.build.environ}
        if isa:
            environ |= {"COLLECTIVES_ISA": isa, "DRIVER_ISA": isa}
        return subprocess.run(
            [*self.build.runner, str(self.path), *words.split()], env=environ,
            capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip


def demand_isa(isa: str) -> None:
    """Skips where the processor lacks it: /proc/cpuinfo knows."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    missing = [flag for flag in ISA_FLAGS[isa] if flag not in flags]
    if missing:
        pytest.skip(f"/proc/cpuinfo of this machine has no {', '.join(missing)}")


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
    sources = [*sorted(CORE.rglob("*.c")), *sorted(HERE.glob("driver*.c"))]
    if build.at_once:
        return Driver(linked(build, sources, folder / "driver"), build)
    objects = [folder / f"{path.parent.name}-{path.stem}.o" for path in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(compiled, build), sources, objects))
    return Driver(linked(build, objects, folder / "driver"), build)


def compiled(build: Build, source: Path, target: Path) -> None:
    run([*build.command, *COMPILING, *build.flags, "-c", str(source), "-o", str(target)])


def linked(build: Build, parts: Sequence[Path], target: Path) -> Path:
    """`parts`: objects or sources."""
    names = map(str, parts)
    how = [*COMPILING, *build.flags]
    run([*build.command, *how, *names, "-o", str(target), "-lm", "-pthread"])
    return target


def run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=COMPILE_S)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr[-3000:]}"
