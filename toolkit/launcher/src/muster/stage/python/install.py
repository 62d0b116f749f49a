"""Installs what the user's code asks for (F57, B42).

`requirements.txt` counts for every kind of entry point; a package is built from a private copy,
because the code folder may be the user's own. A job that asks for nothing pays for nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.stage.patience import Patience
from muster.types.errors import InstallError
from muster.types.files import search_path
from muster.types.job import SITE, Program, Settings
from muster.types.steps import Log, StepRunner

if TYPE_CHECKING:
    from muster.stage.python.pip import Pip

REQUIREMENTS = "requirements.txt"


def install(
    program: Program,
    environ: Mapping[str, str],
    settings: Settings,
    run: StepRunner,
    log: Log,
    python: str = "",
    network_isolation: bool = False,
) -> None:
    """Installs requirements and, for a module, its package.

    `python`: the interpreter that will run the script, this one by default. With
    `settings.install_target` everything goes into that folder and nothing of the interpreter's
    own is touched; ranks then need `with_target`. `network_isolation`: the job has no way out.
    Raises InstallError; whatever `run` raises passes through.
    """
    with Patience(os.path.join(program.code_dir, REQUIREMENTS), log):
        wanted = _wanted(program, network_isolation)
    if not wanted:
        return
    from muster.stage.python.pip import Pip, private_copy

    pip = Pip(python or sys.executable, environ, run, settings.install_target)
    with private_copy(program.code_dir if "." in wanted else "") as copy:
        folder = copy or program.code_dir
        if settings.install_target:
            from muster.stage.python.target import install_into

            install_into(settings, wanted, program.code_dir, folder, pip, log)
        else:
            _install_here(wanted, folder, pip, settings.replace_torch, log)


def _install_here(wanted: list[str], folder: str, pip: Pip, replace_torch: bool, log: Log) -> None:
    """Into the interpreter's own folder. Raises InstallError."""
    import tempfile

    from muster.stage.python import pins

    log("install", "installing", what=" ".join(wanted), python=pip.python)
    with tempfile.TemporaryDirectory(prefix="muster-pip-") as private:
        before = pip.installed(private)
        held = () if replace_torch else pins.constrained(before)
        pip.call(["install", *wanted], folder, held=held)
        after = pip.installed(private)
    pins.warn_of_replaced(before, after, log)
    if not replace_torch:
        pins.check(before, after)


def target_of(program: Program, settings: Settings, environ: Mapping[str, str], base: str) -> str:
    """The folder that requirements go to: the one that is set; one below `base` where the
    interpreter's own folder cannot be written (another user than root, a read-only image); ""
    where they go to the interpreter's own, or there are none."""
    if settings.install_target or not _asks(program):
        return settings.install_target
    if any(environ.get(name) for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER")):
        return ""
    import sysconfig

    if os.access(sysconfig.get_path("purelib"), os.W_OK):
        return ""
    return os.path.join(base, SITE)


def provision(
    code_dir: str,
    target: str,
    program: str,
    environ: Mapping[str, str],
    run: StepRunner,
    log: Log,
    python: str = "",
    replace_torch: bool = False,
) -> None:
    """Installs into `target` ahead of a host that will have no network.

    `program`: the entry point's name. The host's own `install`, from a folder with the same
    content and into the same target, then finds everything done and starts nothing.
    """
    from muster.stage.code.program import is_package

    package = not program.endswith(".sh") and is_package(code_dir, program)
    staged = Program("module" if package else "script", program, code_dir, ())
    settings = Settings(install_target=target, replace_torch=replace_torch)
    install(staged, environ, settings, run, log, python)


def with_target(environ: Mapping[str, str], target: str) -> dict[str, str]:
    """`environ` with the packages and programs of an install target found first."""
    if not target:
        return dict(environ)
    return {
        **environ,
        "PYTHONPATH": search_path(target, environ.get("PYTHONPATH", "")),
        "PATH": search_path(os.path.join(target, "bin"), environ.get("PATH", os.defpath)),
    }


def _asks(program: Program) -> bool:
    path = os.path.join(program.code_dir, REQUIREMENTS)
    return program.kind == "module" or os.path.lexists(path)


def _wanted(program: Program, network_isolation: bool) -> list[str]:
    """pip's arguments for what the code folder asks for; [] for nothing."""
    wanted = ["."] if program.kind == "module" else []
    path = os.path.join(program.code_dir, REQUIREMENTS)
    if os.path.lexists(path):
        from muster.stage.python.requirements import check, lines_of

        try:
            lines = lines_of(path)
        except OSError as error:
            raise InstallError(
                f"{path} cannot be read: {error.strerror}",
                "make it a text file that can be read, or remove it",
            ) from error
        check(path, lines, network_isolation)
        wanted += ["-r", REQUIREMENTS] if lines else []
    return wanted
