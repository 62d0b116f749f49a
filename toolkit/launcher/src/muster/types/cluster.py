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


class Cluster(NamedTuple):
    """All hosts of the job in the order of the request.

    `current`: index of this host. `distribution`: indices, in order, of the hosts that take
    part in the distribution (all of them unless the cluster is heterogeneous); never empty.
    `interface`: the network interface that the request names, perhaps absent on this machine.
    `addresses`: host name -> address, IPv4 or IPv6, where the engine gives them (`muster local`).
    Raises ValueError when an index is out of range or a name appears twice.
    """

    hosts: tuple[Host, ...]
    current: int
    distribution: tuple[int, ...]
    interface: str = "eth0"
    addresses: Mapping[str, str] = {}

    def check(self) -> None:
        count = len(self.hosts)
        if len({host.name for host in self.hosts}) != count:
            raise ValueError("a host name appears twice")
        if [host.host_index for host in self.hosts] != list(range(count)):
            raise ValueError("host positions are not their places in the list")
        if not 0 <= self.current < count:
            raise ValueError(f"current host {self.current} is not one of {count}")
        members = self.distribution
        if not members or any(not 0 <= place < count for place in members):
            raise ValueError(f"distribution hosts {members} are not among {count} hosts")

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


def address_of(text: str) -> str:
    """An address of IPv4 or IPv6 in the form that the kernel gives it back in; "" for another
    text."""
    import socket

    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, text))
        except (OSError, ValueError):
            continue
    return ""
