"""The modules of the older package by their names there.

Scripts that train and serve import names of both kinds in one line. Those for serving can be
imported, and say so when they are used.
"""

from __future__ import annotations

from sagemaker_training import content_types, encoders, errors, params
from sagemaker_training import environment as env
from sagemaker_training.environment import Environment as training_env  # noqa: N813

__all__ = [
    "content_types", "encoders", "env", "errors", "modules", "params", "server", "training_env",
    "transformer", "worker",
]  # fmt: skip


class _ForServing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"sagemaker_containers.beta.framework.{self._name}.{name} is for serving, and "
            "muster-compat has what training scripts use\n  Fix: pip install sagemaker-containers"
        )


modules, server = _ForServing("modules"), _ForServing("server")
transformer, worker = _ForServing("transformer"), _ForServing("worker")
