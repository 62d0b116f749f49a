"""Runs pip for a job and turns its failures into errors that a person can act on (F57, S08)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import which

from muster.stage.python.pins import conflict, normalized
from muster.stage.space import DISK_FULL, free_bytes, shortage, tree_bytes
from muster.types.errors import InstallError
from muster.types.files import search_path
from muster.types.masking import Masker
from muster.types.plain import size_text
from muster.types.steps import StepResult, StepRunner

_QUIET = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_ROOT_USER_ACTION": "ignore",
}
_NO_NETWORK = (
    "NewConnectionError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "ConnectTimeoutError",
    "Connection refused",
)
_LIST = (
    "import importlib.metadata as m, json, sys;"
    " found = [(d.metadata['Name'], d.version) for d in m.distributions()];"
    " json.dump(dict(reversed(found)), open(sys.argv[1], 'w'))"  # the first on the path counts
)
_COMPILERS = ("cc", "gcc", "clang")
# setuptools, CMake, Meson, cffi, cargo
_NO_COMPILER = (
    r"(?i)command '[^']*(?:gcc|g\+\+|cc|clang)[\w+.-]*' failed: No such file"
    r"|No such file or directory: '[^'.]*(?:gcc|g\+\+|cc|clang)'"
    r"|unable to execute '[^']*(?:gcc|g\+\+|cc)[^']*'|No CMAKE_C(?:XX)?_COMPILER could be found"
    r"|Unknown compiler\(s\)|(?:gcc|g\+\+|cc): (?:command )?not found|linker `cc` not found"
)


class Pip:
    """pip of one interpreter, in one environment. `target`: "" or the folder for packages."""

    def __init__(
        self, python: str, environ: Mapping[str, str], run: StepRunner, target: str = ""
    ) -> None:
        self.python = python
        self.environ = {**_QUIET, **environ}
        if target:  # what is there already counts as installed
            self.environ["PYTHONPATH"] = search_path(target, environ.get("PYTHONPATH", ""))
            self.environ["PIP_USER"] = "0"
        repository = environ.get("CA_REPOSITORY_ARN")
        if repository:
            from muster.stage.python.codeartifact import index_variables

            self.environ.update(index_variables(repository))
        self._run = run
        self._target = target

    def call(
        self,
        arguments: Sequence[str],
        folder: str,
        held: Sequence[str] = (),
    ) -> None:
        """Runs pip in `folder`. `held`: `pins.constrained`'s. Raises InstallError with pip's last
        lines, credentials masked."""
        command, *rest = arguments
        with _constraints(held) as options:
            argv = (self.python, "-m", "pip", command, *options, *rest)
            result = self._run(argv, self.environ, folder, True)
        if result.status:
            raise self._failure(result, held)

    def installed(self, private: str) -> dict[str, str]:
        """Version by normalized name of all that the interpreter sees. `private`: a folder for the
        answer. Raises InstallError, with its last lines, when the interpreter does not say."""
        path = os.path.join(private, "installed.json")
        result = self._run((self.python, "-c", _LIST, path), self.environ, private, False)
        if result.status:
            raise InstallError(
                f"{self.python} does not say which packages it has (exit code {result.status})",
                "see its last lines above, and whether it runs in this image",
                result.tail,
            )
        with open(path, encoding="utf-8") as file:
            found: dict[str | None, str] = json.load(file)
        return {normalized(name): version for name, version in found.items() if name}

    def _failure(self, result: StepResult, held: Sequence[str]) -> InstallError:
        tail = Masker.of(self.environ).mask(result.tail)
        if "No module named pip" in tail:
            return InstallError(
                f"requirements need pip, and {self.python} has none",
                f"{self.python} -m ensurepip, or install the packages in the image",
            )
        error = conflict(tail, held)
        if error is not None:
            return error
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        # "Exception:" alone comes before a traceback, whose last line says what it was
        errors = [line for line in lines if line.startswith("ERROR:") and line[-1] != ":"]
        reason = (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR:").strip()
        ended = f"exit code {result.status}"
        if result.status < 0:
            ended = f"ended by signal {-result.status}"
        return InstallError(f"pip failed ({ended}): {reason}", self._fix(tail), tail)

    def _fix(self, tail: str) -> str:
        if "No space left on device" in tail:
            return self._room()
        if re.search(_NO_COMPILER, tail) and not any(map(which, _COMPILERS)):
            return (
                "this image has no compiler, and the package has no wheel for this Python: build on"
                " the `cpu-devel` image, which has one, or choose a version with a wheel"
            )
        if "externally-managed-environment" in tail:
            return "run `train` from a virtual environment, or set PIP_BREAK_SYSTEM_PACKAGES=1"
        if any(text in tail for text in _NO_NETWORK):
            if self._target:
                return (
                    "this host cannot reach the package index, as hosts of `muster local` in"
                    " network namespaces cannot: use --isolation process"
                )
            return "this host cannot reach the package index: check its network, or build an image"
        if re.search("No matching distribution|Could not find a version", tail):
            return "check name and version, and that the index is right and has it for this Python"
        return "see the installer's last lines above, and try the same pip command by hand"

    def _room(self) -> str:
        """Names the fullest of the disks that pip writes to; it does not say which that was."""
        temporary = self.environ.get("TMPDIR") or "/tmp"
        free = {
            folder: free_bytes(folder)
            for folder in (temporary, self._target or os.path.dirname(self.python))
        }
        folder = min(free, key=lambda name: 1 << 62 if (size := free[name]) is None else size)
        left = size_text(free[folder] or 0)
        return f"give the disk of {folder} more room ({left} free), or set TMPDIR to a larger disk"


@contextmanager
def _constraints(held: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """pip's arguments for them, with a file that lives as long as the block; () for none."""
    if not held:
        yield ()
        return
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="muster-constraints-", suffix=".txt") as file:
        file.writelines(f"{line}\n" for line in held)
        file.flush()
        yield "-c", file.name


@contextmanager
def private_copy(folder: str) -> Iterator[str]:
    """A copy of `folder` to build in, removed afterwards; "" for "".

    Raises InstallError when there is no room for it.
    """
    if not folder:
        yield ""
        return
    import shutil
    import tempfile

    parent = tempfile.mkdtemp(prefix="muster-build-")
    try:
        yield _copied(folder, os.path.join(parent, "code"))
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _copied(folder: str, copy: str) -> str:
    import shutil

    parent = os.path.dirname(copy)
    try:
        short = shortage(parent, tree_bytes(folder))
        if short:
            raise OSError(next(iter(DISK_FULL)), short)
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise InstallError(
            f"no copy of {folder} could be made to build its package:"
            f" {error.strerror or str(error)[:300]}",
            f"give {os.path.dirname(parent)} more room, or set TMPDIR to a larger disk",
        ) from error
    return copy
