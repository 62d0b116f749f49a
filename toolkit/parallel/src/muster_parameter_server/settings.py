"""The variables that a launcher sets, read once and checked (pure).

| Variable | Who | Meaning |
| PARAMETER_SERVER_ADDRESSES | all | `host:port` of every server, in order, with commas |
| PARAMETER_SERVER_KEY | all | shared key in hexadecimal digits, at least 16 bytes |
| PARAMETER_SERVER_INDEX | servers | which of the addresses is this server's own |
| PARAMETER_SERVER_WORKERS | servers | number of workers |
| RANK, WORLD_SIZE | workers | which worker, of how many |
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from muster_parameter_server.errors import SettingsError

ADDRESSES = "PARAMETER_SERVER_ADDRESSES"
KEY = "PARAMETER_SERVER_KEY"
INDEX = "PARAMETER_SERVER_INDEX"
WORKERS = "PARAMETER_SERVER_WORKERS"
MAX_SERVERS = 4096
MAX_WORKERS = 4096
MIN_KEY_BYTES = 16


class Address(NamedTuple):
    """Where a server listens; `host` is a name or an address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class ServerSettings(NamedTuple):
    """The settings of a server, from its environment."""

    addresses: tuple[Address, ...]
    key: bytes
    number: int
    workers: int

    @property
    def address(self) -> Address:
        return self.addresses[self.number]


class WorkerSettings(NamedTuple):
    """The settings of a worker, from its environment."""

    addresses: tuple[Address, ...]
    key: bytes
    rank: int
    workers: int


def read_server(environ: Mapping[str, str]) -> ServerSettings:
    """Raises SettingsError, also for a server without key that others could reach."""
    addresses = parse_addresses(_given(environ, ADDRESSES), ADDRESSES)
    index = _number(environ, INDEX, 0, len(addresses) - 1)
    workers = _number(environ, WORKERS, 1, MAX_WORKERS)
    key = _key(environ)
    if not key and not addresses[index].is_loopback:
        raise _keyless(f"server {index} would listen on {addresses[index]}")
    return ServerSettings(addresses, key, index, workers)


def read_worker(environ: Mapping[str, str]) -> WorkerSettings:
    """Raises SettingsError, also for a worker without key whose servers others could pretend."""
    addresses = parse_addresses(_given(environ, ADDRESSES), ADDRESSES)
    workers = _number(environ, "WORLD_SIZE", 1, MAX_WORKERS)
    rank = _number(environ, "RANK", 0, workers - 1)
    key = _key(environ)
    for number, address in enumerate(addresses):
        if not key and not address.is_loopback:
            raise _keyless(f"rank {rank} would trust server {number} at {address}")
    return WorkerSettings(addresses, key, rank, workers)


def parse_addresses(text: str, where: str) -> tuple[Address, ...]:
    """`a:1,b:2` as addresses. Raises SettingsError that names `where`."""
    found = tuple(_address(part.strip(), where) for part in text.split(","))
    if len(set(found)) != len(found):
        raise SettingsError(f"{where}={text!r} names a server twice", "give each server a port")
    if len(found) > MAX_SERVERS:
        raise SettingsError(f"{where} names {len(found)} servers", f"at most {MAX_SERVERS}")
    return found


def _keyless(what: str) -> SettingsError:
    return SettingsError(
        f"{KEY} is not set, and {what}",
        f"set {KEY} to the same random hexadecimal digits on every server and worker: "
        "openssl rand -hex 32",
    )


def _address(text: str, where: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    if not host or not colon or not 0 < number < 65536:
        raise SettingsError(
            f"{where}: {text!r} is no address", "write host:port, for example 10.0.0.1:8001"
        )
    return Address(host, number)


def _given(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise SettingsError(
            f"{name} is not set",
            "start the processes with a launcher that sets it, or set it by hand: "
            "docs/how-to/parameter-server.md lists the variables",
        )
    return value


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = _given(environ, name)
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not low <= value <= high:
        raise SettingsError(f"{name}={text!r} is no number from {low} to {high}", f"set {name}")
    return value


def _key(environ: Mapping[str, str]) -> bytes:
    text = environ.get(KEY, "").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        # the value itself is a secret and is not shown
        raise SettingsError(f"{KEY} holds more than hexadecimal digits", "openssl rand -hex 32"
                            ) from None  # fmt: skip
    if text and len(key) < MIN_KEY_BYTES:
        raise SettingsError(
            f"{KEY} has {len(key)} bytes, at least {MIN_KEY_BYTES} are needed",
            "openssl rand -hex 32",
        )
    return key
