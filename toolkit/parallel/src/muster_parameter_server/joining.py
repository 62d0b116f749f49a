"""How a worker comes to its servers: dials until they listen, then both prove the key."""

from __future__ import annotations

import hmac
import os
import socket
import time

from muster_parameter_server import handshake
from muster_parameter_server.errors import ProtocolError, ServerLostError
from muster_parameter_server.exchange import Link
from muster_parameter_server.settings import Address, WorkerSettings
from muster_parameter_server.sockets import dial

_RETRY_S = 0.1
_STEP_S = 5.0  # of the handshake


def join(settings: WorkerSettings, timeout_s: float, may_be_local: bool) -> list[Link]:
    """A link to every server. Raises ServerLostError, ProtocolError."""
    end = time.monotonic() + timeout_s
    links: list[Link] = []
    try:
        for number, address in enumerate(settings.addresses):
            sock = _dial_until(end, timeout_s, settings.rank, number, address, may_be_local)
            links.append(Link(number, address, sock))
            _prove(links[-1], settings, number)
            sock.setblocking(False)
    except BaseException:
        for link in links:
            link.sock.close()
        raise
    return links


def _dial_until(
    end: float, timeout_s: float, rank: int, number: int, address: Address, may_be_local: bool
) -> socket.socket:
    while True:
        try:
            return dial(address, max(_RETRY_S, min(_STEP_S, end - time.monotonic())), may_be_local)
        except OSError as error:
            if time.monotonic() + _RETRY_S > end:
                raise ServerLostError(
                    f"rank {rank} could not connect to server {number} at {address} within "
                    f"{timeout_s:g} s: {error.strerror or error}",
                    "look whether that server runs: python -m muster_parameter_server",
                ) from error
        time.sleep(_RETRY_S)


def _prove(link: Link, settings: WorkerSettings, number: int) -> None:
    nonce = os.urandom(handshake.NONCE_BYTES)
    try:
        link.sock.settimeout(_STEP_S)
        theirs = handshake.read_hello(_exactly(link.sock, handshake.HELLO_BYTES))
        numbers = (theirs, nonce, settings.rank, number)
        link.sock.sendall(handshake.answer(settings.key, *numbers))
        proof = _exactly(link.sock, handshake.PROOF_BYTES)
    except OSError as error:
        raise ServerLostError(
            f"{link.name} refused rank {settings.rank}: {error}",
            "give server and worker the same PARAMETER_SERVER_KEY and PARAMETER_SERVER_ADDRESSES",
        ) from error
    except ProtocolError as error:
        raise ProtocolError(f"{link.name}: {error.message}", error.fix) from error
    if not hmac.compare_digest(proof, handshake.proof_of(settings.key, b"server", *numbers)):
        raise ProtocolError(
            f"{link.name} could not prove the key to rank {settings.rank}",
            "another program may listen there; look at PARAMETER_SERVER_ADDRESSES",
        )


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        got = sock.recv(count - len(data))
        if not got:
            raise ConnectionError("it closed the connection during the handshake")
        data += got
    return bytes(data)
