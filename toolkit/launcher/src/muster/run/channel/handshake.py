"""A connection to the leader that has not proved anything yet, and the one thing it may say.

Promises: S03, S19.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence

from muster.run.base.loop import Loop
from muster.run.channel import wire
from muster.run.channel.identity import PROTOCOL, Hello, Identity, brief
from muster.run.channel.session import Frames

FILES_SHARE = 4  # of the limit of open files: strangers hold no more than a fourth


class Handshake:
    """One hello within a few seconds. `hello` and `ended` are called with this handshake."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        address: str,
        hello: Callable[[Handshake, list[object]], None],
        ended: Callable[[Handshake], None],
    ) -> None:
        self.address = address
        self.nonce = os.urandom(wire.NONCE_BYTES)
        self.since_s = time.monotonic()
        self.said_hello = False
        self.frames = Frames(
            loop,
            sock,
            wire.TO_FOLLOWER,
            wire.TO_LEADER,
            lambda fields: hello(self, fields),
            lambda _why: ended(self),
        )

    def begin(self) -> None:
        self.frames.send(["challenge", PROTOCOL, self.nonce.hex()])


def parse_hello(fields: list[object], mine: Identity, names: Sequence[str]) -> Hello | None:
    """The hello when it is well formed and of this job, else None."""
    try:
        hello = Hello(*fields[1:])  # type: ignore[arg-type]
        bytes.fromhex(hello.nonce)
        good = (
            fields[0] == "hello"
            and hello.protocol == PROTOCOL
            and hello.job == brief(mine.job)
            and type(hello.host_index) is int
            and 0 <= hello.host_index < len(names)
            and hello.host_index != mine.host_index
            and hello.name == names[hello.host_index]
            and isinstance(hello.agreed, dict)
            and isinstance(hello.proof, str)
            and type(hello.received) is int
        )
    except (TypeError, ValueError):
        return None
    return hello if good else None


def share_of_files(wanted: int) -> int:
    """So many connections as strangers may hold: `wanted`, or less under a low limit of files."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else max(1, min(wanted, limit // FILES_SHARE))
