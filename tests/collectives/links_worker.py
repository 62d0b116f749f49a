"""A rank whose link may be slow: `links_worker reduces|swaps COUNT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster_collectives.core import Communicator, DType, Op, Verb
from tests.collectives.checks import LIMIT_S, WrongError
from tests.collectives.meeting import Meeting

PERIOD = 65_521  # a prime, so that no two pieces are alike

Floats = NDArray[np.float32]


def reduces(comm: Communicator, count: int) -> dict[str, Any]:
    """To each rank once. Sums of whole numbers below 2^24 are exact."""
    pattern = (np.arange(count) % PERIOD).astype(np.float32)
    mine = pattern * np.float32(comm.rank + 1)
    out: Floats = np.zeros(count, np.float32)
    for root in range(comm.size):
        call(comm, Verb.REDUCE, mine, out if comm.rank == root else mine, count, root)
    same("reduce", out, pattern * np.float32(comm.size * (comm.size + 1) // 2))
    return {}


def swaps(comm: Communicator, count: int) -> dict[str, Any]:
    """An all-to-all of `count` for each pair whose result takes the place of what is sent."""
    whole = (np.arange(comm.size * comm.size * count) % PERIOD).astype(np.float32)
    table = whole.reshape(comm.size, comm.size, count)  # from, to
    data = table[comm.rank].flatten()
    call(comm, Verb.ALL_TO_ALL, data, data, count)
    same("all_to_all", data, table[:, comm.rank].flatten())
    return {}


def call(
    comm: Communicator, verb: Verb, given: Floats, out: Floats, count: int, root: int = 0
) -> None:
    comm.run(
        verb, source=int(given.ctypes.data), target=int(out.ctypes.data), count=count,
        dtype=DType.F32, op=Op.SUM, root=root, timeout_s=LIMIT_S,
    )  # fmt: skip


def same(name: str, found: Floats, due: Floats) -> None:
    bad = np.flatnonzero(found != due)
    if len(bad):
        at = int(bad[0])
        raise WrongError(f"{name}: {len(bad)} wrong, at {at} {found[at]} for {due[at]}")


PLAYS: dict[str, Callable[[Communicator, int], dict[str, Any]]] = {
    each.__name__: each for each in (reduces, swaps)
}


def main(play: str, count: int) -> None:
    meeting = Meeting()
    comm = meeting.world()
    said = PLAYS[play](comm, count)
    comm.barrier(LIMIT_S)  # who closes at once may cut off what its link has not carried yet
    meeting.say(**said)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
