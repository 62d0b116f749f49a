"""A rank that says how it reaches the others; ranks of HIDDEN forbid others to look into them."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from tests.collectives.faults.fault_worker import reduced
from tests.collectives.support.meeting import Meeting

_PR_SET_DUMPABLE = 4


def main() -> None:
    meeting = Meeting()
    if str(meeting.rank) in os.environ.get("HIDDEN", "").split(","):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    comm = meeting.world()
    data = np.full(256, 1.0, np.float32)
    reduced(comm, data)
    stats = comm.stats()
    meeting.say(
        right=bool((data == comm.size).all()), nodes=list(comm.nodes),
        why=list(comm.why), sent_bytes=stats.sent_bytes,
        paths=sorted(path.name for path, count in stats.paths.items() if count),
    )  # fmt: skip
    comm.close()


if __name__ == "__main__":
    main()
