"""What a host has, as probed; never taken from the name of an instance type."""

from __future__ import annotations

from muster.types.values import NamedTuple


class Interface(NamedTuple):
    """A network interface that is up."""

    name: str
    address: str  # IPv4 or IPv6


class Machine(NamedTuple):
    """Facts of this host. `gpus` and `neurons` are None when the probe did not answer in time."""

    cpus: int
    gpus: int | None
    neurons: int | None
    efa: bool
    interfaces: tuple[Interface, ...]
    memory_limit_bytes: int | None
    shm_bytes: int | None


class HostFacts(NamedTuple):
    """What one host sends to all others before planning; travels as a JSON list.

    `host_index`: the host's index in the cluster. `resolves_leader`: the leader's name resolves
    here to the address that the leader joined with.
    """

    host_index: int
    address: str
    interface: str
    cpus: int
    gpus: int
    neurons: int
    efa: bool
    resolves_leader: bool
    code_hash: str = ""
    toolkit: str = ""
    python: str = ""
    mpi: str = ""  # version of Open MPI, where the job needs it: "4.1.4"
