"""Sockets between workers and servers: TCP, and a local socket where both are on one host.

A local (abstract Unix) socket carries the same bytes through the kernel for half the work. Its
name belongs to the network namespace, as the TCP port does, so it reaches nobody that TCP would
not; a worker uses it only when the listener is a process of its own user.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

from muster_parameter_server.errors import ServerLostError
from muster_parameter_server.settings import Address

# a host that vanished without a word is noticed after 5 + 3 x 3 s
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))
_VANISHED_MS = 14_000
_LOCAL_BUFFER_BYTES = 1 << 20
_BACKLOG = 512


def local_name(address: Address) -> bytes:
    return b"\0muster-parameter-server/" + str(address).encode()


def tune(sock: socket.socket) -> socket.socket:
    """Large buffers for local sockets; TCP: no delay, and a notice when the host is gone."""
    if sock.family == socket.AF_UNIX:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _LOCAL_BUFFER_BYTES)
        return sock
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_MS)
    return sock


def listen(address: Address) -> list[socket.socket]:
    """The TCP listener on this address alone and, where its name is free, the local one.

    Raises ServerLostError.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        found = [
            socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        ]
    except OSError as error:
        raise ServerLostError(
            f"this server cannot listen on {address}: {error.strerror or error}",
            "another process has the port, or the address is not of this host; "
            "look at PARAMETER_SERVER_ADDRESSES and PARAMETER_SERVER_INDEX",
        ) from error
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.bind(local_name(address))
        local.listen(_BACKLOG)
        found.append(local)
    except OSError:  # workers on this host then come by TCP
        local.close()
    return found


def dial(address: Address, timeout_s: float, may_be_local: bool) -> socket.socket:
    """A connection to a server. Raises OSError."""
    if may_be_local:
        with suppress(OSError):
            return _dial_local(address, timeout_s)
    return tune(socket.create_connection((address.host, address.port), timeout_s))


def _dial_local(address: Address, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(local_name(address))
        said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", said)[1] != os.geteuid():
            raise PermissionError("a process of another user listens there")
        return tune(sock)
    except BaseException:
        sock.close()
        raise
