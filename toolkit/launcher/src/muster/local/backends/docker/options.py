"""The options of `--isolation docker` as one value, checked before anything starts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from muster.arguments import UsageError
from muster.types.values import NamedTuple

DOCKER = "docker"
LEAST_MEMORY_BYTES = 6 << 20  # the engine takes no less
LEAST_SHM_BYTES = 4 << 10  # one page
MOST_BYTES = 1 << 50
LEAST_CPUS = 0.01
_SIZE = r"(?i:([0-9]{1,18}(?:\.[0-9]{1,9})?) *([bkmgt]?)(?:i?b)?)"
# source: the reference grammar of the Distribution project, without its length of a name
_DOMAIN = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"(?a:(?:{_DOMAIN}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?"
    r"(?:@[A-Za-z][A-Za-z0-9+._-]*:[0-9A-Fa-f]{32,})?)"
)
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class DockerOptions(NamedTuple):
    """What each host is a container of, and what it may take. `memory_bytes` None: all of this
    machine's; `shm_bytes` None: half of the memory; `cpus` None: all."""

    image: str
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    cpus: float | None = None
    keep: bool = False
    user: str = ""  # of the ranks, UID or UID:GID; "" for the image's own


def user(text: str) -> str:
    """An option's type: a user of containers by number, with or without a group."""
    if re.fullmatch(r"[0-9]{1,10}(:[0-9]{1,10})?", text, re.ASCII):
        return text
    raise argparse.ArgumentTypeError(
        f"expected UID or UID:GID, such as 1000 or $(id -u):$(id -g), got {text!r}"
    )


def is_root(user: str) -> bool:
    """Whether a container of this user runs as root; an image without a user does."""
    return user.partition(":")[0] in ("", "0", "root")


def size(least_bytes: int) -> Callable[[str], int]:
    """An option's type: a number of bytes as the docker command takes it; k, m, g are 1024's."""

    def convert(text: str) -> int:
        match = re.fullmatch(_SIZE, text.strip())
        if not match:
            raise argparse.ArgumentTypeError(
                f"expected a number and b, k, m, g or t, such as 512m or 1.5g, got {text!r}"
            )
        found = int(float(match[1]) * (1 << _UNITS[match[2].lower()]))
        if least_bytes <= found <= MOST_BYTES:
            return found
        least, most = size_in_words(least_bytes), size_in_words(MOST_BYTES)
        raise argparse.ArgumentTypeError(
            f"{text} is {found} bytes: not from {least} to {most}; units are k, m, g, t"
        )

    return convert


def processors(text: str) -> float:
    """An option's type: how many processors, 0.01 and more."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not LEAST_CPUS <= value <= 4096:
        raise argparse.ArgumentTypeError(
            f"expected a number of processors from {LEAST_CPUS} up, such as 0.5 or 2, got {text!r}"
        )
    return value


def size_in_words(size_bytes: int) -> str:
    """`512 MiB`, exact: the largest unit that divides it."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift} {unit}"
    return f"{size_bytes} bytes"


def read_docker(args: argparse.Namespace) -> DockerOptions | None:
    """The options, None for another isolation. Raises UsageError."""
    if args.isolation != DOCKER:
        _refuse_docker_options(args)
        return None
    if args.image is None:
        raise UsageError(
            "--isolation docker needs the image that hosts are containers of",
            "add --image IMAGE, with a program `train` in it",
        )
    if not re.fullmatch(_IMAGE, args.image):
        raise UsageError(
            f"--image: {args.image!r} is not the name of an image",
            "expected NAME[:TAG] in small letters, such as my-image:1; `docker images` lists them",
        )
    if None not in (args.shm_size, args.memory) and args.shm_size > args.memory:
        shm, memory = size_in_words(args.shm_size), size_in_words(args.memory)
        raise UsageError(
            f"--shm-size {shm} is more than --memory {memory}, which holds what lies in /dev/shm",
            f"at most --shm-size {args.memory}",
        )
    limits = (args.memory, args.shm_size, args.cpus, args.keep)
    return DockerOptions(args.image, *limits, args.user or "")


def _refuse_docker_options(args: argparse.Namespace) -> None:
    """Raises UsageError for options that only containers have."""
    given = {
        "--image": args.image is not None,
        "--shm-size": args.shm_size is not None,
        "--cpus": args.cpus is not None,
        "--keep": args.keep,
        "--user": args.user is not None,
    }
    named = ", ".join(name for name, is_given in given.items() if is_given)
    if not named:
        return
    fix = "add --isolation docker"
    if args.isolation:
        fix = f"--isolation docker instead of --isolation {args.isolation}, or leave out {named}"
    raise UsageError(f"{named}: only for --isolation docker", fix)
