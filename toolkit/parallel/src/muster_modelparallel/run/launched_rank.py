"""Which rank this process is, from what a launcher has set (pure).

torchrun and muster set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; Open MPI's mpirun sets
OMPI_COMM_WORLD_*, other ones PMI_*. A process with none of them is alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

from muster_modelparallel.errors import SettingsError

_MAX_SIZE = 1 << 20
_DEFAULT_PORT = 29500
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID",
              "SLURM_JOB_ID")  # fmt: skip


class _Launcher(NamedTuple):
    """The names under which a launcher says a rank's place; alternatives in order."""

    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]


_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Launcher(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Launcher("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
              ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")),
)  # fmt: skip


class LaunchedRank(NamedTuple):
    """A process's place in the job. `local_*`: among the processes of its host. The ranks meet at
    `host`:`port`, where rank 0 listens unless the launcher does."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int


ALONE = LaunchedRank(0, 1, 0, 1, "127.0.0.1", 0)


def launched_rank(environ: Mapping[str, str]) -> LaunchedRank:
    """Raises SettingsError that names the variable which is missing or wrong."""
    for names in _LAUNCHERS:
        there = [bool(environ.get(name, "").strip()) for name in (names.rank, names.size)]
        if all(there):
            return _rank_of(names, environ)
        if any(there):
            found, lacks = (names.rank, names.size)[:: 1 if there[0] else -1]
            raise SettingsError(
                f"{found} is set and {lacks} is not",
                "start the ranks with torchrun, mpirun or muster, or set both",
            )
    return ALONE


def _rank_of(names: _Launcher, environ: Mapping[str, str]) -> LaunchedRank:
    size = _number(environ, names.size, 1, _MAX_SIZE)
    rank = _number(environ, names.rank, 0, size - 1)
    local_size = _local(environ, names.local_size, size, size)
    local_rank = _local(environ, names.local_rank, rank, size - 1)
    host = environ.get("MASTER_ADDR", "").strip()
    if not host and local_size != size:
        raise SettingsError(
            f"MASTER_ADDR is not set, and {local_size} of the {size} ranks are on this host",
            "set MASTER_ADDR to the address of rank 0's host and MASTER_PORT to a free port of it, "
            "on all ranks (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)",
        )
    has_port = bool(environ.get("MASTER_PORT", "").strip())
    port = _number(environ, "MASTER_PORT", 1, 65535) if has_port else _port_of(environ)
    return LaunchedRank(rank, size, local_rank, local_size, host or "127.0.0.1", port)


def _local(environ: Mapping[str, str], names: tuple[str, ...], otherwise: int, most: int) -> int:
    """A place within the host; without any of the names all ranks are on one."""
    name = next((each for each in names if environ.get(each, "").strip()), "")
    return _number(environ, name, 0, most) if name else otherwise


def _port_of(environ: Mapping[str, str]) -> int:
    """Without MASTER_PORT: one port for each job of mpirun, so that two on a host seldom meet."""
    job = next((environ[name] for name in _JOB_NAMES if environ.get(name)), "")
    return 28000 + zlib.crc32(job.encode()) % 1000 if job else _DEFAULT_PORT


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environ.get(name, "").strip()
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not low <= value <= high:
        raise SettingsError(f"{name}={text!r} is no number from {low} to {high}", f"set {name}")
    return value
