"""What staging needs of a supervisor: a real StepRunner, and a Log that remembers its lines."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from muster.types.steps import StepResult

_DEADLINE_S = 120


class Steps:
    """Runs every step as a plain child process. `calls`: (argv, environ, cwd) of each."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], dict[str, str], str]] = []

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, show: bool = True
    ) -> StepResult:
        self.calls.append((tuple(argv), dict(environ), cwd))
        done = subprocess.run(
            argv,
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
        return StepResult(done.returncode, "\n".join(done.stdout.splitlines()[-20:]))


class LogLines:
    """A Log that keeps its lines as `LEVEL component message key=value`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(
        self, component: str, message: str, /, level: str = "INFO", **facts: object
    ) -> None:
        words = [level, component, message, *(f"{key}={value}" for key, value in facts.items())]
        self.lines.append(" ".join(words))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)
