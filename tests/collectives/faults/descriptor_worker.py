"""A rank of two nodes whose first sum finds no descriptor: `descriptor_worker VICTIM`."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tests.collectives.faults.fault_worker import described, raised, reduced
from tests.collectives.support.meeting import Meeting


@contextmanager
def no_descriptor() -> Iterator[None]:
    """All that this process may have are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def main(victim: int) -> None:
    meeting = Meeting()
    comm = meeting.world()
    data = np.ones(4096, np.float32)
    began = time.monotonic()
    if meeting.rank == victim:
        with no_descriptor():
            words = described(raised(lambda: reduced(comm, data)))
    else:
        words = described(raised(lambda: reduced(comm, data)))
    meeting.say(**words, took_s=time.monotonic() - began)
    comm.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
