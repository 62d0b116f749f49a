"""What of this machine starts ranks, for `muster plan`, and what is assumed where it is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from muster.stage.machine.programs import find_tools
from muster.types.distribution import Mpi, ParameterServer
from muster.types.job import Job, Staged
from muster.types.tools import Frameworks, Tools
from muster.types.values import NamedTuple

ASSUMED_MPI = "5.0.11"
_NEEDED = {"tensorflow": ("tensorflow",), "mxnet": ("mxnet",), "pytorch": ("torch",)}


class Found(NamedTuple):
    """The programs that `muster plan` plans with.

    `mpi_version`: of Open MPI, "" where the option needs none; `mpi_source`: where it is from.

    `assumed`: lines that say what this machine lacks.
    """

    tools: Tools
    mpi_version: str = ""
    mpi_source: str = ""
    assumptions: tuple[str, ...] = ()


def find(job: Job, staged: Staged, environ: Mapping[str, str]) -> Found:
    """The tools of this machine that the option of `job` needs."""
    tools = find_tools(environ, sys.executable, job.settings.mpirun)
    if isinstance(job.distribution, ParameterServer):
        from muster.stage.machine.frameworks import find_frameworks

        return _with_frameworks(job, tools, find_frameworks(staged))
    if not isinstance(job.distribution, Mpi):
        return Found(tools)
    from muster.plan.openmpi.version import main_version
    from muster.stage.machine.programs import mpi_version
    from muster.types.mpi_rules import DAEMONS

    version = mpi_version(tools.mpirun, environ)
    if version:
        tools = find_tools(environ, sys.executable, job.settings.mpirun, version)
        daemon = DAEMONS.get(main_version(version), "")
        line = f"no {daemon} is beside {tools.mpirun}: it is assumed; several hosts need it"
        found = Found(tools, version, _source(job, tools.mpirun))
        if tools.mpi_daemon or not daemon:
            return found
        return found._replace(tools=tools._replace(mpi_daemon=daemon), assumptions=(line,))
    missing = f"{tools.mpirun} does not say its version" if tools.mpirun else "no mpirun is here"
    line = f"{missing}: Open MPI {ASSUMED_MPI} is assumed; `train` needs a real one on every host"
    assumed = tools._replace(
        mpirun=tools.mpirun or "mpirun", mpi_daemon=tools.mpi_daemon or "prted"
    )
    return Found(assumed, ASSUMED_MPI, "assumed", (line,))


def _with_frameworks(job: Job, tools: Tools, found: Frameworks) -> Found:
    """What the option or the script asks for is assumed to be in the image."""
    from muster.types.tools import MODULES

    wanted: tuple[str, ...] = found.imported
    if job.distribution.option == "multi_worker_mirrored_strategy":
        wanted = ("tensorflow",)
    elif job.settings.ps_framework:
        wanted = _NEEDED[job.settings.ps_framework]
    if "torch" in wanted:
        wanted = (*wanted, "muster_parameter_server")
    missing = [name for name in MODULES if name in wanted and name not in found.installed]
    have = tuple(name for name in MODULES if name in (*found.installed, *missing))
    lines = (f"{' and '.join(missing)} is not here and is assumed",) if missing else ()
    return Found(tools._replace(frameworks=found._replace(installed=have)), assumptions=lines)


def _source(job: Job, mpirun: str) -> str:
    if job.settings.mpirun:
        return "variable MUSTER_MPIRUN"
    beside = os.path.dirname(mpirun) == os.path.dirname(sys.executable)
    return "beside the interpreter" if beside else "PATH"
