"""A rank of two nodes whose first sum finds no descriptor: `descriptor_worker VICTIM sum`, or which
has too few of them for the group: `VICTIM group`."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from muster_collectives.binding import library
from tests.collectives.faults.fault_worker import described, raised, reduced
from tests.collectives.support.meeting import Meeting

FEW, MANY = 4, 64


@contextmanager
def descriptors_left(spare: int) -> Iterator[None]:
    """But for `spare` all that this process may have are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def main(victim: int, what: str) -> None:
    meeting = Meeting()
    if what == "group":
        library.load()
        began = time.monotonic()
        spare = FEW if meeting.rank == victim else MANY
        with descriptors_left(spare):
            words = described(raised(meeting.world))
        meeting.say(**words, took_s=time.monotonic() - began)
        return
    comm = meeting.world()
    data = np.ones(4096, np.float32)
    began = time.monotonic()
    if meeting.rank == victim:
        with descriptors_left(0):
            words = described(raised(lambda: reduced(comm, data)))
    else:
        words = described(raised(lambda: reduced(comm, data)))
    meeting.say(**words, took_s=time.monotonic() - began)
    comm.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
