"""The options of `--isolation docker` as one value, checked before anything starts."""

from __future__ import annotations

import argparse
import re

from muster.arguments import UsageError, number, size, size_in_words
from muster.types.values import NamedTuple

DOCKER = "docker"
LEAST_SHM_BYTES = 4 << 10  # one page
LEAST_CPUS = 0.01
# source: the reference grammar of the Distribution project, without its length of a name
_DOMAIN = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PART = r"[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"(?a:(?:{_DOMAIN}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?"
    r"(?:@[A-Za-z][A-Za-z0-9+._-]*:[0-9A-Fa-f]{32,})?)"
)


processors = number(
    f"a number of processors from {LEAST_CPUS} up, such as 0.5 or 2",
    lambda value: LEAST_CPUS <= value <= 4096,
)


class DockerOptions(NamedTuple):
    """What each host is a container of, and what it may take. `memory_bytes` None: all of this
    machine's; `shm_bytes` None: half of the memory; `cpus` None: all."""

    image: str
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    cpus: float | None = None
    keep: bool = False
    user: str = ""  # of the ranks, UID or UID:GID; "" for the image's own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what only containers have."""
    group = parser.add_argument_group(
        "with --isolation docker",
        "Limits are for each host. Sizes: a number and k, m or g. Nothing is ever pulled.",
    )
    add = group.add_argument
    add("--image", metavar="IMAGE", help="what hosts are containers of; has a `train` (required)")
    add(
        "--shm-size",
        metavar="SIZE",
        type=size(LEAST_SHM_BYTES),
        help="size of /dev/shm (half of the memory)",
    )
    add("--cpus", metavar="N", type=processors, help="processors, such as 1.5 (all)")
    add("--user", metavar="UID[:GID]", type=user, help="who runs the ranks (the image's USER)")
    add("--keep", action="store_true", help="leave containers and network, and say how to look")


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
