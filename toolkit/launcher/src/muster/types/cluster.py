"""The hosts of a job: who they are, which of them is this one, and who leads."""

from __future__ import annotations

from collections.abc import Mapping

from muster.types.values import NamedTuple


class Host(NamedTuple):
    """One container of the job; `host_index` is its index in the request's list of all hosts."""

    name: str
    host_index: int
    group: str
    instance_type: str


class _ClusterFields(NamedTuple):
    hosts: tuple[Host, ...]
    current: int
    distribution: tuple[int, ...]
    interface: str
    addresses: Mapping[str, str]


class Cluster(_ClusterFields):
    """All hosts of the job in the order of the request.

    `current`: index of this host. `distribution`: indices, in order, of the hosts that take
    part in the distribution (all of them unless the cluster is heterogeneous); never empty.
    `interface`: the network interface that the request names, perhaps absent on this machine.
    `addresses`: host name -> address, IPv4 or IPv6, where the engine gives them (`muster local`).
    Raises ValueError when an index is out of range or a name appears twice.
    """

    __slots__ = ()

    def __new__(
        cls,
        hosts: tuple[Host, ...],
        current: int,
        distribution: tuple[int, ...],
        interface: str = "eth0",
        addresses: Mapping[str, str] | None = None,
    ) -> Cluster:
        if len({host.name for host in hosts}) != len(hosts):
            raise ValueError("a host name appears twice")
        if [host.host_index for host in hosts] != list(range(len(hosts))):
            raise ValueError("host positions are not their places in the list")
        if not 0 <= current < len(hosts):
            raise ValueError(f"current host {current} is not one of {len(hosts)}")
        if not distribution or any(not 0 <= place < len(hosts) for place in distribution):
            raise ValueError(f"distribution hosts {distribution} are not among {len(hosts)} hosts")
        return super().__new__(cls, hosts, current, distribution, interface, addresses or {})

    @property
    def me(self) -> Host:
        return self.hosts[self.current]

    @property
    def leader(self) -> Host:
        """The first distribution host: it listens, decides and leaves last."""
        return self.hosts[self.distribution[0]]

    @property
    def is_leader(self) -> bool:
        return self.current == self.distribution[0]

    @property
    def in_distribution(self) -> bool:
        """Whether this host holds ranks; other hosts run the script once, as helpers."""
        return self.current in self.distribution
