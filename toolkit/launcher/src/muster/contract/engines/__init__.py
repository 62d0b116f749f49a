"""Which engine started this host, and what it says: one pure reader for each engine."""

from __future__ import annotations

from collections.abc import Mapping

from muster.contract.engines import batch, hosts, kubernetes, sagemaker, slurm
from muster.contract.engines.values import Files
from muster.types.engine import Engine
from muster.types.errors import ConfigError
from muster.types.names import TYPED, did_you_mean, listed
from muster.types.plain import short
from muster.types.values import NamedTuple

CHOICE = "MUSTER_ENGINE"
SINGLE = "single"
# the first that is found counts: a step of Slurm may run in a pod
READERS = {
    "sagemaker": sagemaker.read,
    "slurm": slurm.read,
    "batch": batch.read,
    "kubernetes": kubernetes.read,
    "hosts": hosts.read,
}
NAMES = (*READERS, SINGLE)
_FIXES = {
    "sagemaker": "resourceconfig.json below the base folder says it",
    "slurm": "start it by srun: SLURM_STEP_ID and SLURM_NODEID say it",
    "batch": "AWS_BATCH_JOB_NUM_NODES says it, in a multi-node job",
    "kubernetes": "JOB_COMPLETION_INDEX, PET_NNODES or a hostfile say it",
    "hosts": f"set {hosts.INDEX} and {hosts.HOSTS} (--host-index, --host-list)",
}


class Detected(NamedTuple):
    """The engine, why it was taken, and the names of others that are there too."""

    engine: Engine
    why: str
    others: tuple[str, ...] = ()


def detect(environ: Mapping[str, str], files: Files, wanted: str = "") -> Detected:
    """The engine `wanted`, or of MUSTER_ENGINE, else the first that is there, else one host.

    Raises ConfigError for one that is unknown, is not there, or contradicts itself.
    """
    why = "option --engine" if wanted else f"variable {CHOICE}"
    name = wanted or environ.get(CHOICE, "")
    if name and name not in NAMES:
        what = f"unknown engine {short(name)}{did_you_mean(name, NAMES, likeness=TYPED)}"
        raise ConfigError.of(why, what, f"known are {listed(NAMES)}")
    if name == SINGLE:
        return Detected(Engine(SINGLE, 0, 1), why)
    if name:
        asked = READERS[name](environ, files)
        if asked is None:
            raise ConfigError.of(why, f"{name} did not start this host", _FIXES[name])
        return Detected(asked, why)
    found: Engine | None = None
    others = []
    for reader, read in READERS.items():
        if found is None:
            found = read(environ, files)
        elif _is_there(reader, environ, files):
            others.append(reader)
    if found is None:
        return Detected(Engine(SINGLE, 0, 1), "no engine was found")
    return Detected(found, "the first that was found", tuple(others))


def _is_there(name: str, environ: Mapping[str, str], files: Files) -> bool:
    """Also where it contradicts itself: it does not count."""
    try:
        return READERS[name](environ, files) is not None
    except ConfigError:
        return True
