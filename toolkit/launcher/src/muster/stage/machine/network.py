"""By which interface and address the hosts of a job reach each other (B12, F26)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping

from muster.types.cluster import Cluster
from muster.types.files import link_target, read_text
from muster.types.machine import Interface, Machine
from muster.types.steps import Log
from muster.types.values import NamedTuple

LOOPBACK = Interface("lo", "127.0.0.1")
_TIME_WAIT = "06"


class Choice(NamedTuple):
    """The chosen interface of this host.

    `reason`: why it is not simply the interface that the request names, or "".
    """

    interface: Interface
    reason: str = ""


def job_interface(cluster: Cluster, machine: Machine, log: Log | None = None) -> Interface:
    """The interface, with this host's address on it, that the job's traffic takes.

    Sends nothing; resolves a name of another host only when the named interface is not here.
    """
    interface, reason = choose_interface(cluster, machine)
    if log and reason:
        log(
            "network",
            f"network_interface_name: {cluster.interface!r} {reason}",
            level="WARNING",
            used=interface.name,
            address=interface.address,
            have=",".join(dict.fromkeys(one.name for one in machine.interfaces)),
        )
    return interface


def choose_interface(cluster: Cluster, machine: Machine) -> Choice:
    """The named interface if it is here, else the one that holds this host's address, else the
    one that leads to another host, else the first real one as a guess, else `lo`.

    An address that the engine gives for this host counts more than a name that contradicts it.
    """
    named = next((one for one in machine.interfaces if one.name == cluster.interface), None)
    holder = _holder(cluster.addresses.get(cluster.me.name, ""), machine)
    if holder and named and holder.name != named.name:
        return Choice(holder, "does not hold this host's address")
    if holder or named:
        return Choice(holder or named or LOOPBACK, "" if named else "not found")
    others = [host.name for host in cluster.hosts if host != cluster.me]
    for name in others:
        for target in resolve(name, cluster.addresses):
            leading = _holder(route_source(target), machine)
            if leading:
                return Choice(leading, f"not found; {leading.name} leads to {name}")
    real = [one for one in machine.interfaces if not one.address.startswith("127.")]
    if others and real:
        return Choice(real[0], f"not found; {real[0].name} is a guess")
    return Choice(_holder(LOOPBACK.address, machine) or LOOPBACK, "not found")


def _holder(address: str, machine: Machine) -> Interface | None:
    """The interface that answers for `address`, with that address."""
    for one in machine.interfaces:
        if one.address == address:
            return one
    if address.startswith("127."):  # all of 127.0.0.0/8 is lo's without being listed
        lo = next((one for one in machine.interfaces if one.address.startswith("127.")), LOOPBACK)
        return Interface(lo.name, address)
    return None


def route_source(target: str) -> str:
    """The address that packets to `target` would leave with, or "". Sends nothing."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect((target, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def resolve(name: str, addresses: Mapping[str, str]) -> list[str]:
    """The addresses of a host: the engine's own, else what the resolver says, of IPv6 only where
    there is none of IPv4; [] when unknown. May block as long as the system's resolver does."""
    if name in addresses:
        return [addresses[name]]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return []


def can_bind(port: int) -> bool:
    """Whether a server could listen at the TCP port on every address. Takes microseconds, where
    the kernel's tables take seconds on a machine with very many connections."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


def port_holder(address: str, port: int, proc: str = "/proc") -> str | None:
    """What holds a TCP port that is to be bound: `PID 12 (python)`, or None when it is free.

    A holder that belongs to somebody else cannot be named; then it is "another user's process".
    """
    inodes = _holding_sockets(address, port, proc)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdecimal, os.listdir(proc)):
        try:
            descriptors = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        for number in descriptors:
            if link_target(f"{proc}/{pid}/fd/{number}") in wanted:
                return f"PID {pid} ({read_text(f'{proc}/{pid}/comm').strip() or 'gone'})"
    return "another user's process"


def _holding_sockets(address: str, port: int, proc: str) -> set[str]:
    """Inodes of sockets on the port whose address overlaps with ours."""
    any_address = ("00000000", "0" * 32)
    ours = _in_table(address) if address else any_address[0]
    mapped = "0000000000000000FFFF0000" + ours
    found = set()
    for table in ("tcp", "tcp6"):
        for line in read_text(f"{proc}/net/{table}", -1).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] == _TIME_WAIT:
                continue
            where, _, number = fields[1].partition(":")
            overlaps = where in (*any_address, ours, mapped) or ours == any_address[0]
            if int(number, 16) == port and overlaps and fields[9] != "0":
                found.add(fields[9])
    return found


def _in_table(address: str) -> str:
    """An address as /proc/net has it: words of 32 bits in the order of this machine's bytes."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words = (packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    return b"".join(words).hex().upper()
