"""What an image has pinned, and what an install of the job's requirements makes of it.

torch and its family are built for one another and for the image's devices: `torchvision` in a
requirements.txt, unconstrained, replaces a CPU build of torch by another release with 5 GB of CUDA
packages, and a build of another index than torch's does not even import. So installs run under
constraints, and the job ends before it trains when they cannot hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from muster.types.errors import InstallError
from muster.types.steps import Log

# A package of these in the image is never replaced; the first is the one that the others fit.
FAMILY = ("torch", "torchvision", "torchaudio", "torch-xla", "torch-neuronx", "triton")
# Extensions that are compiled against one build of torch.
EXTENSIONS = ("torchvision", "torchaudio")
OPT_OUT = "MUSTER_REPLACE_TORCH=1"
SHOWN = 6

Versions = Mapping[str, str]


def normalized(name: str) -> str:
    """A project's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained(before: Versions) -> tuple[str, ...]:
    """What holds torch's family as it is, for pip; () without torch."""
    names = FAMILY if FAMILY[0] in before else ()
    return tuple(f"{name}=={before[name]}" for name in names if name in before)


def check(before: Versions, after: Versions) -> None:
    """Raises InstallError for a new torchvision or torchaudio that cannot work with a CPU build of
    torch: the package index has builds for CUDA alone under those names."""
    torch = after.get(FAMILY[0], "")
    for name in EXTENSIONS if torch.endswith("+cpu") and os.uname().machine == "x86_64" else ():
        version = after.get(name, "")
        if version and version != before.get(name) and not version.endswith("+cpu"):
            raise InstallError(
                f"{name} {version} was built for CUDA, and this image has torch {torch}: it would"
                " fail at import",
                f"take an image with {name} in it (docs/how-to/images/README.md), name PyTorch's"
                f" CPU index in requirements.txt, or set {OPT_OUT}",
            )


def warn_of_replaced(before: Versions, after: Versions, log: Log) -> None:
    """One line that names each package of the image that has another version now."""
    changed = [name for name in sorted(before) if after.get(name, before[name]) != before[name]]
    if changed:
        words = [f"{name} {before[name]} by {after[name]}" for name in changed[:SHOWN]]
        rest = [f"{len(changed) - SHOWN} more"] if len(changed) > SHOWN else []
        text = ", ".join([*words, *rest])
        log("install", f"requirements replaced packages of the image: {text}", level="WARNING")


def conflict(tail: str, held: Sequence[str]) -> InstallError | None:
    """What pip says when `held` cannot hold; None for another failure, such as a conflict with
    constraints of the user's own."""
    lines = [line.strip() for line in tail.splitlines()]
    limits = [limit for line in lines for limit in _limits(line.partition("(constraint)")[2])]
    has = next((limit for limit in limits if limit in held), "")
    if not has:
        return None
    return InstallError(
        f"requirements.txt needs another torch than the image has: {_other_side(lines)}, and the"
        f" image has {has}",
        f"ask for versions that fit {has}, take an image with the torch that you need, or set"
        f" {OPT_OUT} to replace it on every host at every start",
        tail,
    )


def _limits(constraint: str) -> list[str]:
    """`torch<=3,==2.13.0` as `torch<=3` and `torch==2.13.0`: pip joins ours and the user's own."""
    first, *others = constraint.strip().split(",")
    name = re.split("[=<>!~]", first)[0]
    return [first, *(name + other for other in others)]


def _other_side(lines: Iterable[str]) -> str:
    asked = [
        line.removeprefix("The user requested ")
        for line in lines
        if (line.startswith("The user requested ") or " depends on " in line)
        and "(constraint)" not in line
    ]
    of_torch = [line for line in asked if any(name in line for name in FAMILY)]
    return (of_torch or asked or ["see pip's lines above"])[-1]
