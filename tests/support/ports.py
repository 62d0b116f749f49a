"""Ports for servers of a test, on a machine where other tests run too."""

from __future__ import annotations

import fcntl
import functools
import os
import secrets
import socket
from pathlib import Path

PORTS = range(12_000, 32_000)  # below those that the kernel hands out
CLAIMS = Path(__file__).resolve().parents[2] / ".cache" / "ports"


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, that no outgoing connection is given meanwhile, and that
    no other process that runs tests of this checkout picked: a server may take seconds to start."""
    found: list[int] = []
    while len(found) < count:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        if port not in found and _is_free(port) and _claim(port):
            found.append(port)
    return found


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def _claim(port: int) -> bool:
    """Whether it is this process's from now to its end."""
    try:
        fcntl.lockf(open_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # POSIX leaves open which of the two it is
        return False
    return True


@functools.cache
def open_claims() -> int:
    """The descriptor of a file whose bytes stand for ports; whoever claims one locks its byte. It
    stays open: a process that closes it gives all its locks up."""
    CLAIMS.parent.mkdir(exist_ok=True)
    return os.open(CLAIMS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
