"""A rank whose link may be slow: `links_worker PLAY COUNT`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muster_collectives.core import Communicator, DType, Op, Verb
from tests.collectives.core.checks import LIMIT_S, WrongError
from tests.collectives.faults.fault_worker import SHORT_S, described, raised
from tests.collectives.support.meeting import Meeting
from tests.collectives.support.watching import once
from tests.support.waiting import wait_until

PERIOD = 65_521  # a prime, so that no two pieces are alike
BUSY_BYTES = 1 << 20

Floats: TypeAlias = "NDArray[np.float32]"


def reduces(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """To each rank once. Sums of whole numbers below 2^24 are exact."""
    pattern = (np.arange(count) % PERIOD).astype(np.float32)
    mine = pattern * np.float32(comm.rank + 1)
    out: Floats = np.zeros(count, np.float32)
    for root in range(comm.size):
        call(comm, Verb.REDUCE, mine, out if comm.rank == root else mine, count, root)
    same("reduce", out, pattern * np.float32(comm.size * (comm.size + 1) // 2))
    return {}


def swaps(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """An all-to-all of `count` for each pair whose result takes the place of what is sent."""
    whole = (np.arange(comm.size * comm.size * count) % PERIOD).astype(np.float32)
    table = whole.reshape(comm.size, comm.size, count)  # from, to
    data = table[comm.rank].flatten()
    call(comm, Verb.ALL_TO_ALL, data, data, count)
    same("all_to_all", data, table[:, comm.rank].flatten())
    return {}


def lasts(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """A broadcast for which SHORT_S is too little, though data comes all the time."""
    data: Floats = np.ones(count, np.float32)
    comm.barrier(LIMIT_S)
    began = time.monotonic()
    error = raised(lambda: call(comm, Verb.BROADCAST, data, data, count, limit_s=SHORT_S))
    return {**described(error), "took_s": time.monotonic() - began}


def handles(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """A signal for rank 1 amid a broadcast."""
    found: list[float] = []
    signal.signal(signal.SIGTERM, lambda number, frame: found.append(time.monotonic()))
    data: Floats = np.full(count, comm.rank, np.float32)
    with amid_data(comm, lambda: meeting.mark(f"busy-{comm.rank}")):
        call(comm, Verb.BROADCAST, data, data, count)
    ended = time.monotonic()
    same("broadcast", data, np.zeros(count, np.float32))
    return {"handled": found, "ended": ended}


def leaves(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """Rank 0 aborts amid a broadcast of rank 1, which the test stops then, and kills; the rest of
    the data lies in the socket. Says how much of it is in memory that the call has given back."""
    data: Floats = np.ones(count, np.float32)

    def abort() -> None:
        meeting.mark("busy")
        meeting.wait_for_mark("stopped")
        comm.abort()

    with amid_data(comm, abort):
        words = described(raised(lambda: call(comm, Verb.BROADCAST, data, data, count, root=1)))
    data[:] = np.nan
    meeting.mark("failed")
    wait_until(lambda: not connections(), LIMIT_S, lambda: "the other end still stands")
    comm.close()
    return {**words, "written": int(np.count_nonzero(~np.isnan(data)))}


def streams(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """Sums of `count` and of fewer: whole numbers below 2^24 are exact. Says how many connections
    that took."""
    for length in (count, 1, count - 1, count // 2 + 1, 70_001):
        pattern = (np.arange(length) % PERIOD).astype(np.float32)
        data = pattern * np.float32(comm.rank + 1)
        call(comm, Verb.ALL_REDUCE, data, data, length)
        same("all_reduce", data, pattern * np.float32(comm.size * (comm.size + 1) // 2))
    return {"connections": len(own_connections())}


def severs(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """Rank 1 ends its last connection to rank 0 and no other one, between two sums."""
    data: Floats = np.ones(count, np.float32)
    call(comm, Verb.ALL_REDUCE, data, data, count)
    if comm.rank == 1:
        with socket.socket(fileno=os.dup(max(own_connections()))) as last:
            last.shutdown(socket.SHUT_RDWR)
    return described(raised(lambda: call(comm, Verb.ALL_REDUCE, data, data, count)))


def uneven(meeting: Meeting, comm: Communicator, count: int) -> dict[str, Any]:
    """Rank 0 sends `count` to rank 1, which expects half of that, then the other way round."""
    told = []
    for number, (sent, expected) in enumerate(((count, count // 2), (count // 2, count))):
        group = meeting.world(f"uneven-{number}")
        data: Floats = np.zeros(count, np.float32)
        ins, outs = ([0, sent], [0, 0]) if comm.rank == 0 else ([0, 0], [expected, 0])
        run = partial(
            group.run, Verb.ALL_TO_ALL, source=int(data.ctypes.data),
            target=int(data.ctypes.data), count=0, dtype=DType.F32, in_counts=ins,
            out_counts=outs, timeout_s=LIMIT_S,
        )  # fmt: skip
        told.append(described(raised(run)))
        group.close()
    return {"told": told}


def own_connections() -> list[int]:
    """Descriptors of this process's sockets that are connected over a network."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.getpeername():
                    found.append(int(name))
        except OSError:  # no socket, not connected, or the descriptor of the folder itself
            continue
    return found


def connections() -> int:
    """TCP connections in this network that are established."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[3] == "01" for line in lines)


def amid_data(comm: Communicator, act: Callable[[], None]) -> AbstractContextManager[None]:
    """Another thread does `act` once the call in the block has received some data."""
    before = comm.stats().received_bytes
    return once(lambda: comm.stats().received_bytes - before >= BUSY_BYTES, act)


def call(
    comm: Communicator, verb: Verb, given: Floats, out: Floats, count: int, root: int = 0,
    limit_s: float = LIMIT_S,
) -> None:  # fmt: skip
    comm.run(
        verb, source=int(given.ctypes.data), target=int(out.ctypes.data), count=count,
        dtype=DType.F32, op=Op.SUM, root=root, timeout_s=limit_s,
    )  # fmt: skip


def same(name: str, found: Floats, due: Floats) -> None:
    bad = np.flatnonzero(found != due)
    if len(bad):
        at = int(bad[0])
        raise WrongError(f"{name}: {len(bad)} wrong, at {at} {found[at]} for {due[at]}")


PLAYS: dict[str, Callable[[Meeting, Communicator, int], dict[str, Any]]] = {
    each.__name__: each
    for each in (reduces, swaps, lasts, handles, leaves, streams, severs, uneven)
}


def main(play: str, count: int) -> None:
    meeting = Meeting()
    comm = meeting.world()
    said = PLAYS[play](meeting, comm, count)
    # who closes at once may cut off what its link has not carried yet; where the play broke the
    # group there is nothing left to cut off
    raised(lambda: comm.barrier(LIMIT_S))
    meeting.say(**said)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
