"""Where sshd listens: on the job's network, if it can be known."""

from __future__ import annotations

import fcntl
import socket
import struct

from muster_ssh.identity import Identity

__all__ = ["listen_addresses"]

_SIOCGIFADDR = 0x8915


def listen_addresses(job: Identity) -> list[str]:
    """The address of the job's interface; else those of this host's own name; [] for all.

    The interface that SDK v3's local mode names does not exist. A name that leads to the loopback
    says nothing where there are other hosts. Waits as long as the resolver does.
    """
    found = _of_interface(job.interface) or _of_name(job.host)
    alone = len(job.hosts) == 1
    return [address for address in found if alone or not address.startswith(("127.", "::1"))]


def _of_interface(name: str) -> list[str]:
    if not name or len(name.encode()) > 15:
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            told = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
        except OSError:
            return []  # there is no such interface, or it has no IPv4 address
    return [socket.inet_ntoa(told[20:24])]


def _of_name(name: str) -> list[str]:
    if not name:
        return []
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses = dict.fromkeys(str(place[0]) for *_, place in found)
    return [address for address in addresses if "%" not in address and _is_ours(address)]


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
