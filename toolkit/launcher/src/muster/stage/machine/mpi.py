"""Which Open MPI this host has."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

ASK_S = 10.0


def mpi_version(mpirun: str, environ: Mapping[str, str]) -> str:
    """The version of the Open MPI that `mpirun` belongs to ("4.1.4"); "" when there is none, it
    is another MPI's, or it does not answer within 10 s."""
    if not mpirun:
        return ""
    from muster.stage.machine.question import Question

    answer = Question([mpirun, "--version"], environ).answer(time.monotonic() + ASK_S)
    found = re.search(r"\(Open MPI\) (\d+(?:\.\d+)*)", answer or "")
    return found[1] if found else ""
