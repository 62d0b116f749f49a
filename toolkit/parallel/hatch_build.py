"""Compiles csrc/ into the wheel where there is a C compiler; without one the wheel has no core, and
torch's CPU tensors go to gloo.

| Variable | Meaning |
| MUSTER_CC, CC | the compiler, such as `python -m ziglang cc`; else cc, gcc, clang |
| MUSTER_TARGET | `-target`, such as `aarch64-linux-gnu.2.17`; the wheel's platform follows |
| MUSTER_PLATFORM | the wheel's platform tag, such as `manylinux_2_17_x86_64` |
| MUSTER_CORE | `required`: no compiler is an error; `skip`: none; `keep`: an editable one stays |
| MUSTER_CFLAGS | more flags, after ours |
| MUSTER_JOBS | compilers at a time; else as many as processors |

An editable install puts the core into src/muster_collectives/_native. Nothing is compiled for the
machine that builds alone: what a processor has is found out at run time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "muster_collectives/_native/libmuster_core.so"
COMPILING = (
    "-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread",
    # every instruction set must give the same bits
    "-ffp-contract=off",
)  # fmt: skip
LINKING = ("-shared", "-pthread", "-Wl,-z,defs")
_COMPILE_S = 900
_MODES = ("", "required", "skip", "keep")


class CustomBuildHook(BuildHookInterface[Any]):
    """Called by hatchling for every wheel and every editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        csrc = root / "csrc"
        mode = os.environ.get("MUSTER_CORE", "")
        if mode not in _MODES:
            raise RuntimeError(f"MUSTER_CORE={mode!r} is not known\n  Fix: required, skip or keep")
        target = root / "src" / NATIVE
        if mode == "skip" or not csrc.is_dir():
            self._note("without the compiled core: MUSTER_CORE=skip" if mode else "no csrc here")
            _forget(target)
            return
        if mode == "keep" and version == "editable" and target.is_file():
            return
        compiler = compiler_of(os.environ)
        if not compiler:
            self._without("no C compiler (MUSTER_CC, CC, cc, gcc, clang)", mode)
            _forget(target)
            return
        editable = version == "editable"
        self._folder = tempfile.TemporaryDirectory(prefix="muster-core-")
        made = Path(self._folder.name) / "libmuster_core.so"
        failed = compile_core(compiler, csrc, made, os.environ)
        if failed:
            self._without(f"{shlex.join(compiler)} fails: {failed}", mode)
            _forget(target)
            return
        if editable:
            target.parent.mkdir(parents=True, exist_ok=True)
            # a new file, for a running process may have the old one mapped
            partial = target.with_suffix(".partial")
            shutil.copyfile(made, partial)
            partial.replace(target)
            return
        build_data["force_include"][str(made)] = NATIVE
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(os.environ)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()

    def _without(self, why: str, mode: str) -> None:
        if mode == "required":
            raise RuntimeError(f"muster-parallel: {why}\n  Fix: install a C compiler (gcc), or "
                               "unset MUSTER_CORE")  # fmt: skip
        self._note(f"without the compiled core, so torch goes to gloo and all else fails: {why}")

    def _note(self, text: str) -> None:
        print(f"muster-parallel: {text}", file=sys.stderr)


def compiler_of(environ: Mapping[str, str]) -> list[str]:
    """The command, or nothing."""
    for name in ("MUSTER_CC", "CC"):
        words = shlex.split(environ.get(name, ""))
        if words:
            return words if shutil.which(words[0]) else []
    return next(([found] for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), [])


def compile_core(compiler: list[str], csrc: Path, made: Path, environ: Mapping[str, str]) -> str:
    """ "" if it went well, else the compiler's last lines."""
    sources = sorted(csrc.rglob("*.c"))
    target = environ.get("MUSTER_TARGET", "")
    begin = [*compiler, *(["-target", target] if target else [])]
    compiling = [*begin, *COMPILING, f"-I{csrc}"]
    more = shlex.split(environ.get("MUSTER_CFLAGS", ""))
    objects = [made.parent / object_name(source, csrc) for source in sources]
    with ThreadPoolExecutor(_jobs(environ)) as pool:
        failures = pool.map(
            lambda source, into: _run([*compiling, *more, "-c", "-o", into, source]),
            map(str, sources), map(str, objects),
        )  # fmt: skip
        failed = next((failure for failure in failures if failure), "")
    if failed:
        return failed
    # the flags once more: sanitizers and the like want to link as well
    return _run([*begin, *LINKING, *more, "-o", str(made), *map(str, objects), "-lm"])


def object_name(source: Path, csrc: Path) -> str:
    """Two folders may have a file of one name."""
    return "-".join(source.relative_to(csrc).with_suffix(".o").parts)


def _run(command: list[str]) -> str:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_S, check=False,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ended.returncode == 0:
        return ""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return " | ".join(lines[-5:]) or f"it ended with code {ended.returncode}"


def _jobs(environ: Mapping[str, str]) -> int:
    text = environ.get("MUSTER_JOBS", "")
    return int(text) if text.isdigit() and int(text) else len(os.sched_getaffinity(0))


def platform_of(environ: Mapping[str, str]) -> str:
    """The wheel's platform tag."""
    given = environ.get("MUSTER_PLATFORM", "")
    if given:
        return given
    target = environ.get("MUSTER_TARGET", "")
    if target:
        machine, _, rest = target.partition("-")
        glibc = rest.partition(".")[2]
        if glibc:
            return f"manylinux_{glibc.replace('.', '_')}_{machine}"
        return f"linux_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _forget(path: Path) -> None:
    """A core of an earlier build must not stay beside newer Python."""
    if path.exists():
        path.unlink()
