"""Metric definitions for the lines of `muster.metrics`, in the words of SageMaker's clients."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.runtime.metrics import PREFIX
from muster.sdk.refusal import RequestError
from muster.types.errors import Problem

MOST = 40  # that a training job may have
MOST_CHARACTERS = 255  # of a name
_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*(?:e[-+]?[0-9]+)?|nan|inf))"


def metric_definitions(names: Sequence[str]) -> list[dict[str, str]]:
    """The list for `metric_definitions=` of an Estimator: `[{"Name": "loss", "Regex": ...}]`.

    Each expression matches the number of its metric anywhere in a log's line, with or without a
    prefix before it. Raises RequestError for a name that no metric can have.
    """
    problems = [problem for name in names for problem in _problems(name)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        problems.append(Problem("metric definitions", f"{twice} is there twice", "name it once"))
    if len(names) > MOST:
        what = f"{len(names)} names; a training job takes {MOST}"
        problems.append(Problem("metric definitions", what, "choose the ones that you look at"))
    if problems:
        raise RequestError(problems)
    return [{"Name": name, "Regex": expression_for(name)} for name in names]


def expression_for(name: str) -> str:
    """Matches the line of `muster.metrics` that has this metric; its group is the number."""
    return rf"{PREFIX}(?: \S+)* {re.escape(name)}={_NUMBER}"


def _problems(name: str) -> list[Problem]:
    if name.isidentifier() and name.isascii() and len(name) <= MOST_CHARACTERS:
        return []
    shown = name if len(name) <= 60 else f"{name[:60]}..."
    what = f"{shown!r} is no name that muster.metrics takes"
    fix = f"letters, digits and _ only, at most {MOST_CHARACTERS} of them, such as val_loss"
    return [Problem("metric definitions", what, fix)]
