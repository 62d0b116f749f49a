"""What `muster local` and the host supervisor send each other: JSON documents, one a line.

Down, on the supervisor's stdin: one `Orders`, then words. Up: `["ready"]` once every host was
started, `["ended", host_index, status]` for each, `["error", text]` when hosts could not be made or
held, followed by an exit code where it is not a LaunchError's, `["note", text]` for people,
`["fact", name, value]` for the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.local.caches import Caches
from muster.types.values import NamedTuple

STOP = b"s"  # SIGTERM to every host
KILL = b"k"  # SIGKILL to everything


class HostOrder(NamedTuple):
    """One host. `argv` empty: set everything up and start nothing. `base`: its opt/ml.
    `output` and `errors`: descriptors of the supervisor that become its stdout and stderr. `group`:
    the control group that it joins. `disk`: it needs a disk of its own, which a fault will fill."""

    name: str
    address: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str
    base: str
    output: int
    errors: int
    group: str = ""
    disk: bool = False


class Containers(NamedTuple):
    """What every host is a container of. `run`: the id in names and labels. `folder`: the run's.
    Limits are for each host; see `backends.docker.options.DockerOptions`."""

    run: str
    folder: str
    image: str
    memory_bytes: int | None
    shm_bytes: int | None
    cpus: float | None
    keep: bool
    user: str = ""


class Orders(NamedTuple):
    """What the host supervisor is to start.

    `backend`: the name of its `Backend`. `lock`: a descriptor of the supervisor that keeps the run
    folder, -1 for none. `kept`: paths that stay visible although a host has its own /tmp.
    `writable`: folders that stay writable. `channels`: name -> folder, mounted read-only.
    `checkpoint`: the folder that all hosts have for checkpoints, "" for one of each host's own.
    """

    backend: str
    hosts: tuple[HostOrder, ...]
    kept: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    channels: Mapping[str, str] = {}
    containers: Containers | None = None
    lock: int = -1
    checkpoint: str = ""
    caches: Caches = Caches()
    pasta: str = ""  # makes the hosts' way out


def to_line(document: object) -> bytes:
    """A document as one line."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def orders_from_line(line: bytes) -> Orders:
    """The inverse of `to_line` for Orders."""
    backend, hosts, kept, writable, channels, containers, *rest = json.loads(line)
    lock, checkpoint, caches, pasta = rest
    orders = (HostOrder(name, address, tuple(argv), *more) for name, address, argv, *more in hosts)
    return Orders(
        backend=backend,
        hosts=tuple(orders),
        kept=tuple(kept),
        writable=tuple(writable),
        channels=channels,
        containers=None if containers is None else Containers(*containers),
        lock=lock,
        checkpoint=checkpoint,
        caches=Caches(*caches),
        pasta=pasta,
    )
