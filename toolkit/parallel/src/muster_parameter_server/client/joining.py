"""How a worker comes to its servers: dials until they listen, then both prove the key."""

from __future__ import annotations

import hmac
import os
import socket
import time

from muster_parameter_server.client.exchange import Link
from muster_parameter_server.errors import ProtocolError, ServerLostError
from muster_parameter_server.settings import Address, WorkerSettings
from muster_parameter_server.wire import handshake
from muster_parameter_server.wire.sockets import dial

_RETRY_S = 0.1
_STEP_S = 5.0  # of the handshake
_REFUSALS = 5  # then the key is wrong, and not the server busy


def join(settings: WorkerSettings, timeout_s: float, may_be_local: bool) -> list[Link]:
    """A link to every server. Raises ServerLostError, ProtocolError."""
    end = time.monotonic() + timeout_s
    links: list[Link] = []
    try:
        for number, address in enumerate(settings.addresses):
            links.append(_join_one(end, timeout_s, settings, number, address, may_be_local))
    except BaseException:
        for link in links:
            link.sock.close()
        raise
    return links


def _join_one(
    end: float, timeout_s: float, settings: WorkerSettings, number: int, address: Address,
    may_be_local: bool,
) -> Link:  # fmt: skip
    """Tries again: a server may not listen yet, or hang up because strangers press in.

    One that hangs up on our answer takes the key for a wrong one; that ends after `_REFUSALS`.
    """
    refusals = 0
    while True:
        limit_s = max(_RETRY_S, min(_STEP_S, end - time.monotonic()))
        link = None
        try:
            link = Link(number, address, dial(address, limit_s, may_be_local))
            hello = _exactly(link.sock, handshake.HELLO_BYTES, limit_s)
            if _prove(link, hello, settings, number):
                link.sock.setblocking(False)
                return link
            refusals += 1
            why = "it closed the connection during the handshake"
        except OSError as error:
            why = error.strerror or str(error)
        finally:
            if link is not None and link.sock.getblocking():
                link.sock.close()
        if refusals == _REFUSALS:
            raise ServerLostError(
                f"server {number} at {address} refused rank {settings.rank}: {why}",
                "give server and worker the same PARAMETER_SERVER_KEY and "
                "PARAMETER_SERVER_ADDRESSES",
            )
        if time.monotonic() + _RETRY_S > end:
            raise ServerLostError(
                f"rank {settings.rank} could not connect to server {number} at {address} within "
                f"{timeout_s:g} s: {why}",
                "look whether that server runs: python -m muster_parameter_server",
            )
        time.sleep(_RETRY_S)


def _prove(link: Link, hello: bytes, settings: WorkerSettings, number: int) -> bool:
    """Whether the server took our proof; it gave its own. Raises ProtocolError."""
    nonce = os.urandom(handshake.NONCE_BYTES)
    try:
        theirs = handshake.read_hello(hello)
    except ProtocolError as error:
        raise ProtocolError(f"{link.name}: {error.message}", error.fix) from error
    numbers = (theirs, nonce, settings.rank, number)
    try:
        link.sock.sendall(handshake.answer(settings.key, *numbers))
        proof = _exactly(link.sock, handshake.PROOF_BYTES, _STEP_S)
    except OSError:
        return False
    if not hmac.compare_digest(proof, handshake.proof_of(settings.key, b"server", *numbers)):
        raise ProtocolError(
            f"{link.name} could not prove the key to rank {settings.rank}",
            "another program may listen there; look at PARAMETER_SERVER_ADDRESSES",
        )
    return True


def _exactly(sock: socket.socket, count: int, within_s: float) -> bytes:
    """Raises OSError when the bytes have not come in time, however many of them did."""
    end = time.monotonic() + within_s
    data = bytearray()
    while len(data) < count:
        sock.settimeout(max(0.001, end - time.monotonic()))
        got = sock.recv(count - len(data))
        if not got:
            raise ConnectionError("it closed the connection during the handshake")
        data += got
    return bytes(data)
