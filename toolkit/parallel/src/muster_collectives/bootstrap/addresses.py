"""Which address this rank gives to ranks of other nodes.

COLLECTIVES_ADDRESS, else that of COLLECTIVES_INTERFACE (or of the one interface that
GLOO_SOCKET_IFNAME names), else the one from which MASTER_ADDR is reached. Where that is a loopback
address, the one of the way out is given as well: it counts if not all ranks are on this machine.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from muster_collectives.binding import library
from muster_collectives.runtime.errors import CollectiveError, ResourceError, SettingsError
from muster_collectives.runtime.messages import DESCRIPTORS_FIX, NO_DESCRIPTOR
from muster_collectives.runtime.settings import Settings
from muster_collectives.runtime.types import Code

_SIOCGIFADDR = 0x8915
_BACKLOG = 4096  # all ranks of a large group may come at once; the system's bound counts as well
_NO_MORE = (errno.ENOMEM, errno.ENOBUFS)  # no address is at fault
_NOWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))  # addresses for documentation: never sent to


class Place(NamedTuple):
    """Where this rank listens for others of one group: its addresses, the preferred first, the
    port, and the number of its endpoint there. Of a group of one rank: nowhere."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 0
    endpoint: int = 0


def open_endpoint(settings: Settings, environ: Mapping[str, str]) -> Place:
    """A new endpoint, to be closed by `mc_endpoint_close`. Raises SettingsError that names the
    variable, ResourceError, CoreError."""
    hosts = own_addresses(settings, environ)
    core = library.load(settings.core)
    try:
        number, port = library.open_endpoint(core, hosts, lambda: listen(hosts, _BACKLOG))
    except OSError as error:
        raise _no_listener(settings, hosts[0], error) from error
    return Place(hosts, port, number)


def _no_listener(settings: Settings, host: str, error: OSError) -> CollectiveError:
    reason = error.strerror or str(error)
    if error.errno in NO_DESCRIPTOR:
        what = f"this process has no descriptor left to listen with: {reason}"
        return ResourceError(what, DESCRIPTORS_FIX, code=Code.ESYS)
    if error.errno in _NO_MORE or not (settings.address or settings.interface):
        return ResourceError(
            f"nothing can listen at {host}: {reason}",
            "set COLLECTIVES_ADDRESS to an address of this host, and look at its limits",
            code=Code.ESYS,
        )
    if settings.address:
        what = f"COLLECTIVES_ADDRESS={settings.address!r} is no address to listen at"
    else:
        what = f"COLLECTIVES_INTERFACE={settings.interface!r} has no address to listen at: {host}"
    return SettingsError(
        f"{what} on host {socket.gethostname()}: {reason}",
        "one of this host (`ip address`), set for each host by itself, or neither",
    )


def own_addresses(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """One or two, the preferred first. Raises SettingsError for an interface without address."""
    if settings.address:
        return (settings.address,)
    if settings.interface:
        found = of_interface(settings.interface)
        if not found:
            raise SettingsError(
                f"COLLECTIVES_INTERFACE={settings.interface!r} is no interface with an address on "
                f"host {socket.gethostname()}",
                f"one of {', '.join(name for _, name in socket.if_nameindex())}",
            )
        return (found,)
    hinted = of_interface(environ.get("GLOO_SOCKET_IFNAME", "").strip())
    if hinted:
        return (hinted,)
    master = environ.get("MASTER_ADDR", "").strip()
    towards = _towards(master, 9) if master else ""
    out = next((found for host, port in _NOWHERE if (found := _towards(host, port))), "")
    both = [found for found in (towards, out) if found]
    if not both:
        return ("127.0.0.1",)
    if not is_loopback(both[0]):
        return (both[0],)
    return tuple(dict.fromkeys(both))


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def of_interface(name: str) -> str:
    """Its IPv4 address, else a global IPv6 one; "" where it has none."""
    if not name or len(name) > 15:
        return ""
    with (
        suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("16s240x", os.fsencode(name)))
        return socket.inet_ntoa(answer[20:24])
    return _ipv6_of(name)


def listen(hosts: tuple[str, ...], backlog: int) -> socket.socket:
    """A listener that ranks reach at any of `hosts`: a free port, non-blocking. Raises OSError."""
    if len(hosts) > 1:
        sock = listen_everywhere(0, backlog)
    else:
        family = socket.AF_INET6 if ":" in hosts[0] else socket.AF_INET
        sock = socket.create_server((hosts[0], 0), family=family, backlog=backlog)
    sock.setblocking(False)
    return sock


def listen_everywhere(port: int, backlog: int) -> socket.socket:
    """At all addresses of this host, of both families where it has both. Raises OSError."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("0.0.0.0", port), family=socket.AF_INET, backlog=backlog)


def _towards(host: str, port: int) -> str:
    """The own address on the way to `host`; no packet is sent."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, _, _, address in found:
        with suppress(OSError), socket.socket(family, kind) as sock:
            sock.connect(address)
            own = str(sock.getsockname()[0]).partition("%")[0]
            if own not in ("0.0.0.0", "::"):
                return own
    return ""


def _ipv6_of(name: str) -> str:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    for digits, _, _, scope, _, device in (line for line in lines if len(line) == 6):
        if device == name and scope == "00":
            return str(ipaddress.IPv6Address(int(digits, 16)))
    return ""
