"""What a run here does not share with SageMaker, in a few lines that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from muster.local.backends.docker.options import DOCKER, DockerOptions, size_in_words
from muster.local.environment import PROCESS, threads_per_rank
from muster.local.paths import TEMPORARY, is_below
from muster.local.request import Request


def differences(request: Request, isolation: str) -> list[str]:
    """One sentence each."""
    found = []
    if isolation == PROCESS:
        found += [
            "hosts share /tmp, /dev/shm, caches and this machine's name; the names algo-1, ... do "
            "not resolve, addresses are of the loopback network",
            "the literal /opt/ml is not the host's: scripts must use the SM_* variables",
        ]
        if request.checkpoint:
            found.append(
                "--checkpoint is the folder `checkpoints` beside the one that SM_MODEL_DIR names: "
                "what a script writes to the literal /opt/ml/checkpoints is not kept there"
            )
        if request.channels:
            found.append("channels are links to your own folders: what a script writes stays")
    elif isolation == DOCKER:
        found += [
            "hosts reach what this machine's containers reach, without a role: S3 needs --env; "
            "they see no accelerator of this machine",
        ]
    else:
        way_out = "this machine's network, without a role: S3 needs --env"
        nothing = "nothing else: no internet, no S3"
        found.append(f"hosts reach one another and {way_out if request.internet else nothing}")
    if request.channels and isolation != PROCESS:
        found.append("channels are read-only")
    threads = threads_per_rank(request)
    found.append(
        "all hosts share this machine's processors, memory and devices: "
        f"{threads} thread{'s' * (threads > 1)} for each rank (OMP_NUM_THREADS)"
    )
    if request.memory_bytes:
        found.append(f"each host may take {size_in_words(request.memory_bytes)} of memory")
    if request.docker:
        found.append(f"each host may take {_limits(request.docker)}")
    if request.arguments:
        found.append("arguments after -- do not exist there: use hyperparameters")
    return found


def vanishing(request: Request, visible: Sequence[str]) -> list[str]:
    """A warning for each path below a folder that every host has of its own, as far as values of
    the command line name one. `visible`: what hosts see there all the same."""
    pairs = [("--env", *pair) for pair in request.environ.items()]
    pairs += [("--hyperparameter", *pair) for pair in request.hyperparameters.items()]
    pairs += [("--", "", word) for word in request.arguments]
    found = []
    for option, name, value in pairs:
        path = value.rpartition("=")[2] if option == "--" else value
        top = next((folder for folder in TEMPORARY if is_below(path, [folder])), "")
        if top and path != top and not is_below(path, visible):
            given = f"{option} {name}={path}" if name else f"{option} {path}"
            found.append(
                f"{given}: {top} is each host's own, so what lies there now is not seen and what "
                "is written there vanishes: use --channel to read, /opt/ml or --checkpoint to keep"
            )
    return found


def _limits(options: DockerOptions) -> str:
    """What one container may take of this machine."""
    memory = "all memory" if options.memory_bytes is None else size_in_words(options.memory_bytes)
    cpus = "all processors"
    if options.cpus is not None:
        cpus = f"{options.cpus:g} processor{'s' * (options.cpus != 1)}"
    shm = "half of the memory" if options.shm_bytes is None else size_in_words(options.shm_bytes)
    return f"{memory}, {cpus}, {shm} in /dev/shm"
