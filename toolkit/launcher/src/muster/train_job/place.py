"""This host's address on the job interface, and how names of hosts become addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from muster.spec.cluster import Cluster
from muster.spec.steps import Log

LOOPBACK = "127.0.0.1"


class Place(NamedTuple):
    """`interface` is "" for a job of one host, which needs no network."""

    address: str
    interface: str
    resolve: Callable[[str], Sequence[str]]


def find_place(cluster: Cluster, log: Log) -> Place:
    """Where this host stands on the network; looks nothing up for a job of one host."""
    if len(cluster.hosts) == 1:
        return Place(LOOPBACK, "", lambda _name: (LOOPBACK,))
    from muster.spec.machine import Machine
    from muster.stage.network import job_interface, resolve
    from muster.stage.probe import interfaces

    # devices are probed later, as a joined host: nvidia-smi may take its time
    machine = Machine(1, None, None, False, interfaces(), None, None)
    interface = job_interface(cluster, machine, log)
    address = cluster.addresses.get(cluster.me.name, interface.address)
    return Place(address, interface.name, lambda name: resolve(name, cluster.addresses))


def warn_of_init(log: Log) -> None:
    """Under a shell as PID 1, SIGTERM never reaches this process (protocol.md 7)."""
    if os.getpid() == 1 or os.getppid() != 1:
        return
    try:
        with open("/proc/1/comm") as file:
            name = file.read().strip()
    except OSError:
        return
    if name in ("sh", "bash", "dash", "ash", "zsh"):
        log(
            "start",
            f"PID 1 is the shell {name}: a stop signal will not reach this job; "
            "start the container with `exec` or an init such as tini",
            level="WARNING",
        )
