"""What reading the request brings to light besides values: problems, warnings, origins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from muster.types.errors import ConfigError, Problem
from muster.types.masking import Masker
from muster.types.plain import short

_T = TypeVar("_T")
ENOUGH = 20  # problems of one list that an error names


class Findings:
    """Collected by every reader, so that one run names all that is wrong.

    `problems`, in the order of importance, end the job; `warnings` are lines for the log;
    `origins` says where a value came from ("program" -> "variable SAGEMAKER_PROGRAM").
    """

    __slots__ = ("origins", "problems", "warnings")

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.origins: dict[str, str] = {}

    def problem(self, where: str, what: str, fix: str = "") -> None:
        self.problems.append(Problem(where, what, fix))

    def expected(self, where: str, what: str, got: object, fix: str = "") -> None:
        """A problem of a value that is something else than `what`."""
        self.problem(where, f"expected {what}, got {short(got)}", fix)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def warn_of_each(self, items: list[_T], say: Callable[[_T], str], rest: str) -> None:
        """A warning for each of the first items, and one, `... and N more REST`, for the others."""
        self.warnings += map(say, items[:ENOUGH])
        if len(items) > ENOUGH:
            self.warn(f"... and {len(items) - ENOUGH} more {rest}")

    def error(self, *maps: Mapping[str, object]) -> ConfigError:
        """All problems as one error, without the values of secret names in `maps`.

        Raises ValueError when there is no problem.
        """
        mask = Masker.of(*maps).mask
        problems = [Problem(*map(mask, problem)) for problem in self.problems]
        return ConfigError(problems, tuple(map(mask, self.warnings)))
