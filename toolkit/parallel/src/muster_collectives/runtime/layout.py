"""Where the ranks of a group are and what they share (pure values)."""

from __future__ import annotations

import enum
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from muster_collectives.runtime.tuning import Tuning

KEY_BYTES = 32
_ADDRESS = struct.Struct("=QHH16s4x")  # mc_address, without a scope


class ShmMethod(enum.Enum):
    """How the ranks of a node share memory."""

    ALONE = "alone"
    MEMFD = "memfd"  # opened through /proc/PID/fd
    FILE = "file"  # in /dev/shm, unlinked once all have it open


class Address(NamedTuple):
    """Where a rank listens: an IP address without brackets, and a port. `endpoint`: the number of
    the group that is meant there, 0: what listens has no groups."""

    host: str
    port: int
    endpoint: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Those of all ranks, as the core takes them: a large group is made without a look at each."""

    packed: bytes = b""

    @classmethod
    def of(cls, addresses: Iterable[Address]) -> Addresses:
        """Raises ValueError for a host that is no address."""
        return cls(b"".join(map(_packed, addresses)))

    def __len__(self) -> int:
        return len(self.packed) // _ADDRESS.size

    def __getitem__(self, rank: int) -> Address:
        endpoint, family, port, raw = _ADDRESS.unpack_from(self.packed, rank * _ADDRESS.size)
        host = socket.inet_ntop(family, raw[: 16 if family == socket.AF_INET6 else 4])
        return Address(host, port, endpoint)


def _packed(address: Address) -> bytes:
    raw = ipaddress.ip_address(address.host).packed
    family = socket.AF_INET6 if len(raw) > 4 else socket.AF_INET
    return _ADDRESS.pack(address.endpoint, family, address.port, raw)


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """A group as one rank sees it. `segment_fd` is the memory of its node, which it has by
    `shm_method`, -1: it is alone there; `why` says in words how each rank is reached;
    `addresses` are empty where no rank needs to reach another by TCP."""

    rank: int
    size: int
    nodes: tuple[int, ...]
    shm_method: ShmMethod
    segment_fd: int
    why: Callable[[], tuple[str, ...]]
    addresses: Addresses
    key: bytes
    tuning: Tuning

    @property
    def locals(self) -> tuple[int, ...]:
        """The ranks of this rank's node, ascending."""
        mine = self.nodes[self.rank]
        return tuple(rank for rank, node in enumerate(self.nodes) if node == mine)


def numbered(leaders: Iterable[int]) -> tuple[int, ...]:
    """Nodes numbered by first appearance, from the leader of each rank's node."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(leader, len(numbers)) for leader in leaders)
