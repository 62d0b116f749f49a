"""What a process is connected to over the internet protocols, as the kernel reports it."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection

from muster.types.files import link_target

_TABLES = ("tcp", "tcp6", "udp", "udp6")
_OPEN = ("01", "02")  # established, or on the way there; of one that the peer closed nothing comes
_MAPPED = b"\0" * 10 + b"\xff\xff"


def connected_elsewhere(pid: int, hosts: Collection[str]) -> str:
    """An `address:port` that the process is connected to and that is neither of these `hosts` nor
    of this machine's loopback, or ""."""
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return ""
    links = {link_target(f"/proc/{pid}/fd/{handle}") for handle in handles}
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    if not inodes:
        return ""
    for table in _TABLES:
        for address, port, inode in _connections(f"/proc/{pid}/net/{table}"):
            here = address in hosts or address.startswith("127.") or address == "::1"
            if inode in inodes and not here:
                return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return ""


def _connections(path: str) -> list[tuple[str, int, str]]:
    """(peer's address, its port, inode) of each connection in a table of the kernel."""
    try:
        with open(path, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
    except OSError:
        return []
    found = []
    for row in rows:
        address, _, port = row[2].partition(":")
        if row[3] in _OPEN and port != "0000":
            found.append((_address(address), int(port, 16), row[9]))
    return found


def _address(digits: str) -> str:
    """An address as the kernel prints it: words of 4 bytes in the machine's own order."""
    data = bytes.fromhex(digits)
    words = [data[at : at + 4] for at in range(0, len(data), 4)]
    if socket.htons(1) != 1:  # little-endian
        words = [word[::-1] for word in words]
    data = b"".join(words)
    if data.startswith(_MAPPED):
        data = data[12:]
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
