"""How a worker comes to its servers: dials until they listen, then both prove the key."""

from __future__ import annotations

import time

from muster_collectives.wire import FrameError, RefusedError
from muster_parameter_server.client.exchange import Link
from muster_parameter_server.errors import ProtocolError, ServerLostError
from muster_parameter_server.settings import Address, WorkerSettings
from muster_parameter_server.wire.frames import PROTOCOL
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
        sock = None
        try:
            sock = dial(address, limit_s, may_be_local)
            hello_by = time.monotonic() + limit_s
            PROTOCOL.prove(sock, settings.key, settings.rank, number, hello_by, hello_by + _STEP_S)
            sock.setblocking(False)
            return Link(number, address, sock)
        except RefusedError as error:
            refusals += 1
            why = error.message
        except FrameError as error:
            raise ProtocolError(
                f"server {number} at {address}, to rank {settings.rank}: {error.message}",
                f"{error.fix or 'look what listens there'}; look at PARAMETER_SERVER_ADDRESSES",
            ) from error
        except OSError as error:
            why = error.strerror or str(error)
        finally:
            if sock is not None and sock.getblocking():
                sock.close()
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
