"""How ranks find each other without torch: rank 0 serves a store, the others dial it.

Rank 0 listens at MASTER_PORT, or at one of the next ports where that one is taken (torchrun's own
store has it). Who dials tries them in turn and lets the service speak first, so programs of others
get no byte from us. A proof made from the port, the size, the run and COLLECTIVES_KEY keeps
neighbouring jobs apart.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import socket
import time
from collections.abc import Mapping, Sequence

from muster_collectives.bootstrap import service
from muster_collectives.bootstrap.addresses import is_loopback, listen_everywhere
from muster_collectives.bootstrap.channel import (
    MAX_ASKED_BYTES,
    MAX_TOLD_BYTES,
    Channel,
    StrangerError,
    dial,
)
from muster_collectives.bootstrap.questions import Questions
from muster_collectives.runtime.errors import RendezvousError, ResourceError
from muster_collectives.runtime.messages import DESCRIPTORS_FIX, NO_DESCRIPTOR
from muster_collectives.runtime.types import Code
from muster_collectives.wire import FrameError

PORTS = 8
_TRY_S = 2.0  # for one port to greet
_PAUSE_S = 0.05
_MARGIN_S = 5.0


class Rendezvous:
    """A store (store.py) over one connection, for any thread; rank 0 also holds the service."""

    def __init__(self, channel: Channel, served: service.Service | None) -> None:
        self._questions = Questions(channel)
        self._service = served

    def set(self, key: str, value: bytes) -> None:
        """Raises as `set_all`."""
        self.set_all({key: value})

    def get(self, key: str, timeout_s: float) -> bytes:
        """Raises TimeoutError, RendezvousError."""
        found = self.get_all([key], timeout_s)
        if not found:
            raise TimeoutError(f"{key} is not there after {timeout_s:.1f} s")
        return found[key]

    def set_all(self, values: Mapping[str, bytes]) -> None:
        """All or none. Raises RendezvousError, ValueError for what is too long."""
        for key, value in values.items():
            if len(value) > service.MAX_VALUE_BYTES or len(key.encode()) > service.MAX_KEY_BYTES:
                raise ValueError(f"{key[:60]!r} with {len(value)} bytes is too long for the store")
        body = service.pack(part for key, value in values.items() for part in (key.encode(), value))
        if len(body) > MAX_ASKED_BYTES:
            raise ValueError(f"{len(values)} values with {len(body)} bytes are too many at once")
        kind, _ = self._ask(service.SET, body, _MARGIN_S * 4)
        if kind != service.DONE:
            raise RendezvousError("rank 0's store is full", "make fewer groups, or close them")

    def get_all(self, keys: Sequence[str], timeout_s: float) -> dict[str, bytes]:
        """Waits until all are there, for `timeout_s` at most: those that are. Raises
        RendezvousError, also for more than an answer may hold."""
        asked = service.WAIT.pack(timeout_s) + service.pack(key.encode() for key in keys)
        kind, answer = self._ask(service.GET, asked, timeout_s + _MARGIN_S)
        if kind != service.VALUES:
            what = f"{len(keys)} values have more than {MAX_TOLD_BYTES} bytes"
            raise RendezvousError(what, "ask for fewer at once")
        values = zip(keys, service.unpack(answer), strict=True)
        return {key: bytes(value) for key, value in values if value is not None}

    def close(self) -> None:
        """Never raises."""
        self._questions.close()
        if self._service is not None:
            self._service.close()

    def _ask(self, kind: int, body: bytes, timeout_s: float) -> tuple[int, bytearray]:
        try:
            frame = self._questions.ask(kind, body, timeout_s)
        except (OSError, FrameError) as error:
            raise RendezvousError(
                f"rank 0's store cannot be reached any more: {error}",
                "look at the output of rank 0: it ended, or its host is gone",
            ) from error
        return frame.kind, frame.body


def join(
    host: str, port: int, rank: int, size: int, *, secret: bytes, timeout_s: float
) -> Rendezvous:
    """Rank 0 serves, all dial. Raises RendezvousError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    served = _serve(host, port, size, secret, deadline) if rank == 0 else None
    try:
        channel = _find(host, port, rank, secret, deadline)
    except BaseException:
        if served is not None:
            served.close()
        raise
    return Rendezvous(channel, served)


def secret_of(port: int, size: int, run: str, key: bytes) -> bytes:
    """What a rank proves that it knows (pure). Hosts may know rank 0 by different names, so its
    address is no part of it."""
    text = f"muster-collectives\0{port}\0{size}\0{run}\0".encode()
    return hashlib.sha256(text + key).digest()


def _serve(host: str, port: int, size: int, secret: bytes, deadline: float) -> service.Service:
    failed: OSError | None = None
    while True:
        for candidate in _ports(port):
            try:
                return service.Service(_listen(host, candidate, size), size, secret)
            except OSError as error:
                failed = error
        if time.monotonic() >= deadline:
            raise RendezvousError(
                f"rank 0 cannot listen at {host}, ports {port} to {_ports(port)[-1]}: {failed}",
                "set MASTER_ADDR to an address of rank 0's host and MASTER_PORT to a free port",
            )
        time.sleep(_PAUSE_S)


def _listen(host: str, port: int, size: int) -> socket.socket:
    """At an address alone that is given as one and is this host's, or that a name stands for here
    and elsewhere; else at all of this host's, as others may know the name by another one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    backlog = max(128, min(size, 4096))
    at = [str(address[0]) for _, _, _, _, address in found]
    if host == "localhost" or _is_literal(host) or not (len(set(at)) > 1 or is_loopback(at[0])):
        try:
            return socket.create_server(found[0][4], family=found[0][0], backlog=backlog)
        except OSError as error:
            # it leads here by way of another address (a container's, a load balancer's)
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return listen_everywhere(port, backlog)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _find(host: str, port: int, rank: int, secret: bytes, deadline: float) -> Channel:
    seen: dict[int, str] = {}
    while True:
        for candidate in _ports(port):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                return dial(host, candidate, rank, secret, left_s, min(left_s, _TRY_S))
            except StrangerError as error:
                seen[candidate] = str(error)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    what = f"rank {rank} has no descriptor left to connect to rank 0: {error}"
                    raise ResourceError(what, DESCRIPTORS_FIX, code=Code.ESYS, rank=rank) from error
                seen[candidate] = error.strerror or str(error)
        if time.monotonic() >= deadline:
            tried = "; ".join(f"{number}: {what}" for number, what in sorted(seen.items()))
            raise RendezvousError(
                f"rank {rank} does not find rank 0's store at {host} ({tried})",
                "see that rank 0 runs and that MASTER_ADDR and MASTER_PORT are the same everywhere",
                rank=rank,
            )
        time.sleep(_PAUSE_S)


def _ports(port: int) -> tuple[int, ...]:
    return tuple(number for number in range(port, port + PORTS) if number < 65536)
