"""What goes wrong, in words for the person who started the job: what, where, and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ModelParallelError(RuntimeError):
    """Base of all errors of this package. `fix` says what to do, "" when the text says it."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix


class SettingsError(ModelParallelError, ValueError):
    """A parameter that cannot be used, or parameters that exclude each other."""


class NotStartedError(ModelParallelError):
    """Something was asked for before `init` was called."""


class StepError(ModelParallelError):
    """A step function, or the model outside one, was used in a way that cannot work."""


class PlanError(ModelParallelError, ValueError):
    """No plan fits the model and the ranks, or a plan is damaged or of another model."""


class CheckpointError(ModelParallelError):
    """A checkpoint is missing, cut short, or of another model or other degrees."""


class NotBuiltError(ModelParallelError, NotImplementedError):
    """A documented name or value that muster does not have yet."""


class ExchangeError(ModelParallelError):
    """An object did not come or was not taken: the other rank is gone, or too late."""


class SplitError(ModelParallelError):
    """The model cannot be cut where it should be, or did something else than when it was probed."""


def add_note(error: BaseException, text: str) -> None:
    """Says more of an error that is raised; from Python 3.11 on."""
    add = getattr(error, "add_note", None)
    if add is not None:
        add(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, "" when none is close."""
    return next(iter(difflib.get_close_matches(name[:_LONGEST], list(known), 1, 0.65)), "")


_LONGEST = 60  # characters; longer names cost time
