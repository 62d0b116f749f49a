"""Which rank this process is, from what a launcher has set (pure).

torchrun and muster set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; mpirun sets
OMPI_COMM_WORLD_*. A process with neither is a world of one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from muster_collectives.runtime.errors import SettingsError

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
_TORCH_FROM_OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_DATA_PARALLEL = {
    "SMDATAPARALLEL_RANK": "RANK",
    "SMDATAPARALLEL_LOCAL_RANK": "LOCAL_RANK",
    "SMDATAPARALLEL_SIZE": "WORLD_SIZE",
}
_MAX_WORLD = 1 << 20
DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True)
class Where:
    """This process's place in the job, from the launcher's variables. `run` is the launcher's word
    for this run; `has_store_at_port`: the launcher itself listens at MASTER_PORT, so that rank 0
    cannot."""

    rank: int
    size: int
    host: str
    port: int
    run: str
    has_store_at_port: bool


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher has said that this process is one of a job."""
    return bool(_first(environ, _SIZES) and _first(environ, _RANKS))


def read(environ: Mapping[str, str]) -> Where:
    """Raises SettingsError that names the variable."""
    size_name = _first(environ, _SIZES)
    rank_name = _first(environ, _RANKS)
    if not size_name and not rank_name:
        return Where(0, 1, "127.0.0.1", DEFAULT_PORT, "", False)
    if not size_name or not rank_name:
        raise SettingsError(
            f"{size_name or rank_name} is set, and neither of "
            f"{', '.join(_RANKS if size_name else _SIZES)}",
            "start the processes with torchrun, mpirun or muster, or set both by hand",
        )
    size = _number(environ, size_name, 1, _MAX_WORLD)
    rank = _number(environ, rank_name, 0, size - 1)
    host = environ.get("MASTER_ADDR", "").strip()
    if not host:
        if size > 1 and not _is_one_host(environ, size):
            raise SettingsError(
                "MASTER_ADDR is not set",
                "set it to an address of rank 0's host on all ranks (mpirun -x MASTER_ADDR=...)",
            )
        host = "127.0.0.1"
    has_port = bool(environ.get("MASTER_PORT", "").strip())
    return Where(
        rank=rank,
        size=size,
        host=host,
        port=_number(environ, "MASTER_PORT", 1, 65535) if has_port else _port_of(environ),
        run=environ.get("TORCHELASTIC_RUN_ID") or _job_of(environ),
        has_store_at_port=environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True",
    )


def for_torch(environ: Mapping[str, str]) -> dict[str, str]:
    """What torch.distributed reads and a rank of mpirun alone lacks; {} for any other process.

    What is set stays. MASTER_ADDR is known only where all ranks are on one host.
    """
    if not environ.get("OMPI_COMM_WORLD_RANK"):
        return {}
    found = {name: environ.get(source, "") for name, source in _TORCH_FROM_OPEN_MPI.items()}
    if _is_one_host(environ, environ.get("OMPI_COMM_WORLD_SIZE", "")):
        found["MASTER_ADDR"] = "127.0.0.1"
    found["MASTER_PORT"] = str(_port_of(environ))
    return {name: text for name, text in found.items() if text and not environ.get(name)}


def for_data_parallel(environ: Mapping[str, str]) -> dict[str, str]:
    """What scripts of smdistributed.dataparallel read of this rank (Hugging Face's Trainer the
    local rank), from what a launcher has set; {} where none has. What is set stays."""
    found = {name: environ.get(source, "") for name, source in _DATA_PARALLEL.items()}
    return {name: text for name, text in found.items() if text and not environ.get(name)}


def run_of(environ: Mapping[str, str]) -> str:
    """The run's name, the same on all its ranks, from who has started it; "" where nobody says."""
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    named = "" if elastic == "none" else elastic  # torchrun's word for no name
    return environ.get("TRAINING_JOB_NAME", "") or named or _job_of(environ)


def _job_of(environ: Mapping[str, str]) -> str:
    """Open MPI's name of the job, the same on all its ranks: both 4.1 and 5.0 have one."""
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"):
        if environ.get(name):
            return environ[name]
    return ""


def _port_of(environ: Mapping[str, str]) -> int:
    """Without MASTER_PORT: one port per job, so that two jobs of one machine seldom meet."""
    job = _job_of(environ)
    if not job:
        return DEFAULT_PORT
    return 20000 + 8 * (zlib.crc32(job.encode()) % 1000)


def _is_one_host(environ: Mapping[str, str], size: int | str) -> bool:
    return environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", environ.get("LOCAL_WORLD_SIZE")) == str(size)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if environ.get(name, "").strip()), "")


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environ.get(name, "").strip()
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not low <= value <= high:
        raise SettingsError(f"{name}={text!r} is no number from {low} to {high}", f"set {name}")
    return value
