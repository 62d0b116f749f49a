"""Where the programs that start ranks are. The only part of planning that looks at the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple


class Tools(NamedTuple):
    """`torchrun`: its command, () for torch's module under the job's own Python.

    `neuron_parallel_compile`: its path, "" when it was not found.
    """

    torchrun: tuple[str, ...] = ()
    neuron_parallel_compile: str = ""


def find_tools(environ: Mapping[str, str], python: str) -> Tools:
    """The tools as a rank would find them: on its PATH, else beside its interpreter."""
    folders = [*environ.get("PATH", os.defpath).split(os.pathsep), os.path.dirname(python)]
    torchrun = _find(folders, "torchrun")
    return Tools((torchrun,) if torchrun else (), _find(folders, "neuron_parallel_compile"))


def _find(folders: list[str], name: str) -> str:
    """The first executable file of that name, or ""."""
    for folder in folders:
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""
