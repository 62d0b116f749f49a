"""A rank that says which way sums went: `tuned_worker BYTES...`; registered memory after `+`."""

from __future__ import annotations

import logging
import sys

import numpy as np

from muster_collectives.core import DType, Verb
from tests.collectives.faults.fault_worker import reduced
from tests.collectives.support.meeting import Meeting


def main(sizes: list[str]) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    meeting = Meeting()
    comm = meeting.world()
    ways = []
    for size in sizes:
        bytes_ = int(size.removeprefix("+"))
        if size.startswith("+"):
            region = comm.allocate(bytes_)
            comm.run(Verb.ALL_REDUCE, source=region.address, target=region.address,
                     count=bytes_ // 4, dtype=DType.F32)  # fmt: skip
        else:
            reduced(comm, np.ones(bytes_ // 4, np.float32))
        path = comm.records()[-1].path
        ways.append(path.name if path is not None else "")
        if size.startswith("+"):
            region.release()
    meeting.say(ways=ways)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1:])
