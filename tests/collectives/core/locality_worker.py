"""A rank that says how it reaches the others in the last of GROUPS groups, all open at once; ranks
of HIDDEN forbid others to look into them."""

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
    groups = [meeting.world(f"world{each}") for each in range(int(os.environ.get("GROUPS", "1")))]
    comm = groups[-1]
    totals = []
    for each in groups:
        data = np.full(256, 1.0, np.float32)
        reduced(each, data)
        totals.append(data)
    stats = comm.stats()
    meeting.say(
        right=all((data == comm.size).all() for data in totals), nodes=list(comm.nodes),
        why=list(comm.why), sent_bytes=stats.sent_bytes,
        paths=sorted(path.name for path, count in stats.paths.items() if count),
    )  # fmt: skip
    for each in groups:
        each.close()


if __name__ == "__main__":
    main()
