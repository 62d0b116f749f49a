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
            link, hello = _greet_until(end, timeout_s, settings.rank, number, address, may_be_local)
            links.append(link)
            _prove(link, hello, settings, number)
            link.sock.setblocking(False)
    except BaseException:
        for link in links:
            link.sock.close()
        raise
    return links


def _greet_until(
    end: float, timeout_s: float, rank: int, number: int, address: Address, may_be_local: bool
) -> tuple[Link, bytes]:
    """A connection on which the server has spoken; one that is busy with strangers hangs up."""
    while True:
        try:
            limit_s = max(_RETRY_S, min(_STEP_S, end - time.monotonic()))
            return _greet(number, address, limit_s, may_be_local)
        except OSError as error:
            if time.monotonic() + _RETRY_S > end:
                raise ServerLostError(
                    f"rank {rank} could not connect to server {number} at {address} within "
                    f"{timeout_s:g} s: {error.strerror or error}",
                    "look whether that server runs: python -m muster_parameter_server",
                ) from error
        time.sleep(_RETRY_S)


def _greet(number: int, address: Address, limit_s: float, local: bool) -> tuple[Link, bytes]:
    sock = dial(address, limit_s, local)
    try:
        sock.settimeout(limit_s)
        return Link(number, address, sock), _exactly(sock, handshake.HELLO_BYTES)
    except BaseException:
        sock.close()
        raise


def _prove(link: Link, hello: bytes, settings: WorkerSettings, number: int) -> None:
    nonce = os.urandom(handshake.NONCE_BYTES)
    try:
        link.sock.settimeout(_STEP_S)
        theirs = handshake.read_hello(hello)
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
