"""This host's address on the job interface, and how names of hosts become addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from muster.types.cluster import Cluster
from muster.types.job import Job
from muster.types.steps import Log
from muster.types.values import NamedTuple

LOOPBACK = "127.0.0.1"


class NetworkIdentity(NamedTuple):
    """This host's address and interface, and how it resolves the names of others.

    `interface` is "" for a job of one host, which needs no network.
    """

    address: str
    interface: str
    resolve: Callable[[str], Sequence[str]]


def find_network_identity(cluster: Cluster, log: Log) -> NetworkIdentity:
    """Where this host stands on the network; looks nothing up for a job of one host."""
    if len(cluster.hosts) == 1:
        return NetworkIdentity(LOOPBACK, "", lambda _name: (LOOPBACK,))
    from muster.stage.machine.network import job_interface, resolve
    from muster.stage.machine.probe import interfaces
    from muster.types.machine import Machine

    # devices are probed later, as a joined host: nvidia-smi may take its time
    machine = Machine(1, None, None, False, interfaces(), None, None)
    interface = job_interface(cluster, machine, log)
    address = cluster.addresses.get(cluster.me.name, interface.address)
    return NetworkIdentity(address, interface.name, lambda name: resolve(name, cluster.addresses))


def say_if_key_is_open(job: Job, log: Log) -> None:
    """Where hosts share no secret, any reader of the network can take part in the join.

    On SageMaker that is how jobs are, and the network is the job's own: no warning there.
    """
    cluster = job.cluster
    if len(cluster.hosts) == 1 or not cluster.is_leader or job.settings.secret:
        return
    log(
        "join",
        "MUSTER_JOB_SECRET is not set: hosts get the job key unencrypted when they join; "
        "set it, alike on every host, where others can read the network",
        level="INFO" if job.environ.get("TRAINING_JOB_ARN") else "WARNING",
    )


_SHELLS = ("sh", "bash", "dash", "ash", "zsh")


def warn_of_init(log: Log) -> None:
    """Under a shell as PID 1, SIGTERM never reaches this process."""
    if os.getpid() == 1 or not _is_child_of_init(os.getppid()):
        return
    name = _shell(1)
    if name:
        log(
            "start",
            f"PID 1 is the shell {name}: a stop signal will not reach this job; "
            "start the container with `exec` or an init such as tini",
            level="WARNING",
        )


def _is_child_of_init(parent: int) -> bool:
    """Whether only shells are between PID 1 and this process: none, or one, as the script of SDK
    v3."""
    if parent == 1:
        return True
    try:
        with open(f"/proc/{parent}/stat") as file:
            grandparent = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return False
    return grandparent == 1 and bool(_shell(parent))


def _shell(pid: int) -> str:
    """The shell that a process is, by its own name or by its program's, or ""; a script that was
    started by its path goes by the script's name."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            names = (file.read().strip(), os.path.basename(os.readlink(f"/proc/{pid}/exe")))
    except OSError:
        return ""
    return next((name for name in names if name in _SHELLS), "")
