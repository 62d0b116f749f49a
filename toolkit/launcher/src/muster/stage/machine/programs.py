"""Where the programs that start ranks are, on the disk of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from muster.types.files import find_program
from muster.types.tools import Tools

ASK_S = 10.0


def find_tools(
    environ: Mapping[str, str], python: str, mpirun: str = "", mpi_version: str = ""
) -> Tools:
    """The tools as a rank would find them: on its PATH, else beside its interpreter."""
    folders = [*environ.get("PATH", os.defpath).split(os.pathsep), os.path.dirname(python)]
    torchrun = find_program(folders, "torchrun")
    compile_tool = find_program(folders, "neuron_parallel_compile")
    mpi = find_mpi(environ, python, mpirun, mpi_version)
    return Tools((torchrun,) if torchrun else (), compile_tool, *mpi)


def find_mpi(
    environ: Mapping[str, str], python: str, mpirun: str = "", version: str = ""
) -> tuple[str, str]:
    """mpirun, given or found, and its launch daemon: that of Open MPI `version` ("" for any).

    The one beside the interpreter comes first: a wheel put it there, and the MPI library that
    scripts load is of the same wheel."""
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    mpirun = mpirun or find_program([os.path.dirname(python), *path], "mpirun")
    if not mpirun:
        return "", ""
    folders = [os.path.dirname(mpirun), os.path.dirname(os.path.realpath(mpirun))]
    from muster.types.mpi_rules import DAEMONS  # only these jobs have one

    own = DAEMONS.get(int(version.partition(".")[0])) if version else None
    names = [own] if own else sorted(DAEMONS.values(), reverse=True)
    return mpirun, next(filter(None, (find_program(folders, name) for name in names)), "")


def mpi_version(mpirun: str, environ: Mapping[str, str]) -> str:
    """The version of the Open MPI that `mpirun` belongs to ("4.1.4"); "" when there is none, it
    is another MPI's, or it does not answer within 10 s."""
    if not mpirun:
        return ""
    import re

    from muster.stage.machine.question import Question

    answer = Question([mpirun, "--version"], environ).answer(time.monotonic() + ASK_S)
    found = re.search(r"\(Open MPI\) (\d+(?:\.\d+)*)", answer or "")
    return found[1] if found else ""
