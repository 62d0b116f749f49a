"""What a run here does not share with SageMaker, in a few lines that a person reads."""

from __future__ import annotations

from muster.local.docker_request import DOCKER, DockerOptions, size_in_words
from muster.local.environment import PROCESS, threads_per_rank
from muster.local.request import Request


def differences(request: Request, isolation: str) -> list[str]:
    """One sentence each (protocol.md 11)."""
    found = []
    if isolation == PROCESS:
        found += [
            "hosts share /tmp, /dev/shm, caches and this machine's name",
            "the names algo-1, ... do not resolve; addresses are of the loopback network",
            "the literal /opt/ml is not the host's: scripts must use the SM_* variables",
        ]
        if request.channels:
            found.append("channels are links to your own folders: what a script writes stays")
    elif isolation == DOCKER:
        found += [
            "hosts reach what this machine's containers reach, without a role: S3 needs --env",
            "hosts see no accelerator of this machine",
        ]
    else:
        found.append("hosts reach one another and nothing else: no internet, no S3")
    if request.channels and isolation != PROCESS:
        found.append("channels are read-only")
    threads = threads_per_rank(request)
    found.append(
        "all hosts share this machine's processors, memory and devices: "
        f"{threads} thread{'s' * (threads > 1)} for each rank (OMP_NUM_THREADS)"
    )
    if request.docker:
        found.append(f"each host may take {_limits(request.docker)}")
    if request.arguments:
        found.append("arguments behind -- do not exist there: use hyperparameters")
    return found


def _limits(options: DockerOptions) -> str:
    """What one container may take of this machine."""
    memory = "all memory" if options.memory_bytes is None else size_in_words(options.memory_bytes)
    cpus = "all processors"
    if options.cpus is not None:
        cpus = f"{options.cpus:g} processor{'s' * (options.cpus != 1)}"
    shm = "half of the memory" if options.shm_bytes is None else size_in_words(options.shm_bytes)
    return f"{memory}, {cpus}, {shm} in /dev/shm"
