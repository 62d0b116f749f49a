"""What staging needs of the running supervisor, as protocols: logging and child processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from muster.types.values import NamedTuple


class StepResult(NamedTuple):
    """How one step of staging ended.

    `status`: exit code, or minus a signal; `tail`: the last lines of both streams.
    """

    status: int
    tail: str


class StepRunner(Protocol):
    """Runs one supervised child to its end; its output goes to the log line by line.

    The child is wrapped like a rank: it never outlives the supervisor. Raises StoppedError when
    the job was stopped while it ran.
    """

    def __call__(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, show: bool = True
    ) -> StepResult: ...


class Log(Protocol):
    """One line per event: `time host level component message key=value`."""

    def __call__(
        self, component: str, message: str, /, level: str = "INFO", **facts: object
    ) -> None: ...
