"""Runs a buildspec as CodeBuild does, with this machine in place of its container.

Phases one after the other, commands in the shell that `env` names, each phase stopped by the
first command that fails. After a build that failed post_build still runs, with
CODEBUILD_BUILD_SUCCEEDING=0; after an earlier phase that failed nothing runs.
Source: AWS CodeBuild user guide, build specification reference and build phase transitions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["PHASES", "Phase", "run_buildspec"]

PHASES = ("install", "pre_build", "build", "post_build")
COMMAND_S = 100.0


class Phase(NamedTuple):
    """A phase that ran: whether it went well, and what it said."""

    name: str
    succeeded: bool
    said: str


def run_buildspec(
    spec: Mapping[str, Any], folder: Path, environ: Mapping[str, str]
) -> tuple[Phase, ...]:
    """The phases that ran. `environ`: of the project; it wins over the buildspec's own."""
    variables = {**spec.get("env", {}).get("variables", {}), **environ}
    shell = spec.get("env", {}).get("shell", "/bin/sh")
    ran: list[Phase] = []
    for name in PHASES:
        if any(not phase.succeeded for phase in ran) and name != "post_build":
            break
        if any(not phase.succeeded for phase in ran if phase.name != "build"):
            break
        if name in spec["phases"]:
            succeeding = str(int(all(phase.succeeded for phase in ran)))
            told = {**variables, "CODEBUILD_BUILD_SUCCEEDING": succeeding}
            ran.append(_phase(name, spec["phases"][name], folder, shell, told))
    return tuple(ran)


def _phase(
    name: str, phase: Mapping[str, Any], folder: Path, shell: str, environ: Mapping[str, str]
) -> Phase:
    said: list[str] = []
    succeeded = _commands(phase.get("commands", ()), folder, shell, environ, said)
    finally_succeeded = _commands(phase.get("finally", ()), folder, shell, environ, said)
    return Phase(name, succeeded and finally_succeeded, "".join(said))


def _commands(
    commands: Any, folder: Path, shell: str, environ: Mapping[str, str], said: list[str]
) -> bool:
    """Each in a shell of its own, so none may lean on what another left in its shell."""
    for command in commands:
        done = subprocess.run(
            [shell, "-c", command],
            cwd=folder,
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        said.append(done.stdout)
        if done.returncode:
            return False
    return True
