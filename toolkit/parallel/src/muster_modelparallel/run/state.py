"""`smp.state`: what scripts and transformers' Trainer read of the session, under their names."""

from __future__ import annotations

from typing import Any

from muster_modelparallel.run.session import ModelLike, OptimizerLike, current
from muster_modelparallel.settings.config import Config


class ModuleManager:
    """What is left of it here: the translations that full checkpoints go through."""

    @property
    def translate_functions(self) -> list[Any]:
        """Pairs of functions (to Hugging Face's format, from it); none are needed."""
        return current().translate_functions


class State:
    """A view of the session. All of it raises NotStartedError before `init`."""

    module_manager = ModuleManager()

    @property
    def cfg(self) -> Config:
        """The configuration: `smp.state.cfg.<key>`."""
        return current().config

    @property
    def model(self) -> ModelLike | None:
        """The wrapped model; None before there is one."""
        return current().model

    @property
    def optimizer(self) -> OptimizerLike | None:
        """The wrapped optimizer; None before there is one."""
        return current().optimizer


state = State()


def rmsg(message: object) -> str:
    """The message, with the rank before it. Raises NotStartedError before `init`."""
    return f"[rank {current().mesh.rank}] {message}"
