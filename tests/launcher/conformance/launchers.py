"""The `train` commands under comparison."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.launcher.conformance.scenario import BARE, PYTORCH
from tests.support.venvs import CHECKOUT, locked_environment

OURS = "ours"
LOCK = CHECKOUT / "constraints" / "incumbent.txt"


class Launcher(NamedTuple):
    """`environ`: what an image with this launcher sets; a scenario may set something else."""

    name: str
    bin: Path
    environ: Mapping[str, str]

    @property
    def train(self) -> str:
        return str(self.bin / "train")

    @property
    def python(self) -> str:
        return str(self.bin / "python")


def launcher(name: str) -> Launcher:
    """The launcher of that name. Raises UnavailableError when it cannot be had on this machine."""
    if name == OURS:
        return Launcher(OURS, Path(sys.prefix) / "bin", {})
    environment = locked_environment("incumbent", LOCK)
    module = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}
    return Launcher(name, environment / "bin", {BARE: {}, PYTORCH: module}[name])
