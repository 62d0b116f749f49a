"""Each host's environment of `train`: the caller's, without a job's leftovers, and the run's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster.local.paths import TEMPORARY
from muster.types.debug import HINT
from muster.types.plain import whole_number
from muster.types.run_files import of_an_outer_record

if TYPE_CHECKING:
    from muster.local.backends.base import Backend
    from muster.local.request import Request

PORTS = range(12_000, 32_000)  # below those that the kernel hands out
TRIES = 20

# What another launcher, or a job around this one, left in the environment would mislead the hosts.
_LEFTOVERS = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"}
    | {"MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "RANK_AGENT", "RUN_FACTS"}
    | {"TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "CURRENT_HOST"}
)
_LEFTOVER_PREFIXES = ("SM_", "SAGEMAKER_", "TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "DMLC_")
# The caller may set deadlines and limits; who and where the run is, we say.
_RUN_VARIABLES = (
    "MUSTER_CONTROL_PORT",
    "MUSTER_STORE_PORT",
    "MUSTER_WORKER_PORT",
    "MUSTER_PS_PORT",
    "MUSTER_JOB_SECRET",
    "MUSTER_HOST_ADDRESSES",
    "MUSTER_RUN_DIR",
    "MUSTER_INSTALL_TARGET",
    "MUSTER_INSECURE_JOIN",
    "MUSTER_SHIM",
    "MUSTER_SCRIPT_ARGUMENTS",
    "MUSTER_KEEP_SPELLING",
    "MUSTER_ISOLATION",
    "MUSTER_SOURCE_DIR",
    "MUSTER_INVENTED_NAMES",
    "MUSTER_DEBUG",
)


def free_ranges(*sizes: int) -> list[int]:
    """The first ports of ranges of those sizes, none of which anyone listens on; [] when no such
    ranges are found in some tries."""
    total = sum(sizes)
    for _ in range(TRIES if total <= len(PORTS) else 0):
        first = PORTS.start + int.from_bytes(os.urandom(2), "big") % (len(PORTS) - total + 1)
        if all(_is_free(port) for port in range(first, first + total)):
            return [first + sum(sizes[:host_index]) for host_index in range(len(sizes))]
    return []


def _is_free(port: int) -> bool:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def _ports(backend: Backend) -> dict[str, str]:
    """Hosts of one machine share its ports: the leader's two, and as plain processes one for each
    worker and parameter server. None that a connection is given before it is used, if possible."""
    request, sizes = backend.request, {"MUSTER_CONTROL_PORT": 1, "MUSTER_STORE_PORT": 1}
    if backend.shares_network:
        asked = {**os.environ, **request.environ}.get("MUSTER_PS_SERVERS", "")
        sizes["MUSTER_WORKER_PORT"] = request.hosts
        sizes["MUSTER_PS_PORT"] = max(request.hosts, whole_number(asked, high=9999) or 0)
    found = free_ranges(*sizes.values()) or free_ranges(1, 1)
    return dict(zip(sizes, map(str, found), strict=False))


def run_variables(backend: Backend, hosts: Mapping[str, str]) -> dict[str, str]:
    """What all hosts of the run share: one secret, the ports, the addresses, the folder."""
    request, folder = backend.request, backend.folder
    variables = {
        "TRAINING_JOB_NAME": folder.job,
        "MUSTER_RUN_DIR": folder.path,
        "MUSTER_LOG_PREFIX": "1",
        "MUSTER_LIVE": "1",
        "MUSTER_QUIET": "0" if request.verbose else "1",
        "MUSTER_ISOLATION": backend.name,
        "MUSTER_SOURCE_DIR": request.source_dir,
        "MUSTER_JOB_SECRET": os.urandom(32).hex(),
    }
    variables["MUSTER_DEBUG"] = HINT
    if request.debug is not None:
        from muster.local.debugger.asked import LIMITS_OFF

        variables.update(LIMITS_OFF, MUSTER_DEBUG=request.debug.setting)
    if hosts:
        listed = ",".join(f"{name}={address}" for name, address in hosts.items())
        variables.update(_ports(backend), MUSTER_HOST_ADDRESSES=listed)
    return {**variables, **asked_variables(request)}


def asked_variables(request: Request) -> dict[str, str]:
    """What hosts are told of a request besides SageMaker's documents."""
    found = {
        "MUSTER_KEEP_SPELLING": "1" if request.hyperparameters else "",
        "MUSTER_SHOW_RANKS": request.ranks,
        "MUSTER_SCRIPT_ARGUMENTS": json.dumps(request.arguments) if request.arguments else "",
        "MUSTER_OVERSUBSCRIBE": "1" if request.oversubscribe else "",
    }
    return {name: value for name, value in found.items() if value}


def host_environ(
    caller: Mapping[str, str], host: str, shared: Mapping[str, str], backend: Backend
) -> dict[str, str]:
    """The whole environment of one host's `train`; --env wins over the caller's."""
    request, inherited = backend.request, backend.inherited(caller)
    outer = of_an_outer_record(caller)
    environ = {
        name: value
        for name, value in inherited.items()
        if not _is_leftover(name) and name not in outer
    }
    environ.update(shared)
    environ = backend.environ(environ, caller, host)
    environ.setdefault("OMP_NUM_THREADS", str(backend.threads_per_rank()))
    if request.ranks_at_least > len(os.sched_getaffinity(0)):
        # ranks that wait inside MPI would take the processors from those that work: twice the time
        environ["OMPI_MCA_mpi_yield_when_idle"] = "1"
    environ.update(request.environ)
    return environ


def kept_paths(caller: Mapping[str, str]) -> tuple[str, ...]:
    """What the interpreter and its packages need, wherever they lie."""
    paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable)]
    for text in (caller.get("PYTHONPATH", ""), caller.get("PATH", "")):
        paths += text.split(os.pathsep)
    paths += [os.path.abspath(path) for path in sys.path if path]
    absolute = {os.path.normpath(path) for path in paths if path.startswith("/")}
    return tuple(sorted(p for p in absolute if os.path.isdir(p) and p not in TEMPORARY))


def is_of_a_job(name: str) -> bool:
    """Whether another launcher, or a job around this one, left the variable."""
    return name in _LEFTOVERS or name.startswith(_LEFTOVER_PREFIXES)


def _is_leftover(name: str) -> bool:
    return name in _RUN_VARIABLES or is_of_a_job(name)
