"""Ports for servers of a test, on a machine where other tests run too."""

from __future__ import annotations

import secrets
import socket

PORTS = range(12_000, 32_000)  # below those that the kernel hands out


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, and that no outgoing connection is given meanwhile."""
    found: list[int] = []
    while len(found) < count:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as sock:
            try:
                sock.bind(("", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def free_port() -> int:
    (port,) = free_ports(1)
    return port
