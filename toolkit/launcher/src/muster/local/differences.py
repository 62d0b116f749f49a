"""What a run here does not share with SageMaker, in a few lines that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from muster.local.backends.base import Backend
from muster.local.paths import TEMPORARY, is_below
from muster.local.request import Request
from muster.types.names import counted


def differences(backend: Backend) -> list[str]:
    """One sentence each."""
    threads = counted(backend.threads_per_rank(), "thread")
    found = [
        *backend.differences(),
        "all hosts share this machine's processors, memory and devices: "
        f"{threads} for each rank (OMP_NUM_THREADS)",
        *backend.limits(),
    ]
    if backend.request.arguments:
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
