"""A rank that waits, or that holds memory: `waiting_worker late|together|answers|pages|huge`."""

from __future__ import annotations

import mmap
import re
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_collectives.core import Communicator, DType, Verb
from muster_collectives.runtime import types
from muster_collectives.runtime.buffers import span_of
from tests.collectives.support.meeting import Meeting
from tests.collectives.support.watching import once_it_waits

LIMIT_S = 30.0
CALLS = 200
REGION_BYTES = 3 << 20
HUGE_BYTES = (20 << 20) - 4096  # nine huge pages and most of a tenth


def late(meeting: Meeting, comm: Communicator) -> dict[str, Any]:
    """Rank 1 comes to a barrier only when rank 0, which is in it, has gone to sleep."""
    comm.barrier(LIMIT_S)
    if comm.rank == 0:
        with once_it_waits(comm, lambda: meeting.mark("sleeps")):
            comm.barrier(LIMIT_S)
    else:
        meeting.wait_for_mark("sleeps", LIMIT_S / 2)
        comm.barrier(LIMIT_S)
    return {}


def together(meeting: Meeting, comm: Communicator) -> dict[str, Any]:
    """Barriers in a row, in which nobody is late for long."""
    comm.barrier(LIMIT_S)
    before = comm.stats().sleeps
    for _ in range(CALLS):
        comm.barrier(LIMIT_S)
    return {"sleeps": comm.stats().sleeps - before}


def answers(meeting: Meeting, comm: Communicator) -> dict[str, Any]:
    """Messages that are answered one by one."""
    peer, data = 1 - comm.rank, bytearray(1024)
    address = span_of(data, None, True).address

    def turn(ways: Sequence[str]) -> None:
        for way in ways:
            post = comm.post_send if way == "send" else comm.post_recv
            post(address, len(data), peer, 1, LIMIT_S).wait(LIMIT_S)

    ways = ("receive", "send") if comm.rank else ("send", "receive")
    turn(ways)
    before = comm.stats().sleeps
    for _ in range(CALLS):
        turn(ways)
    return {"sleeps": comm.stats().sleeps - before}


def pages(meeting: Meeting, comm: Communicator) -> dict[str, Any]:
    """Which parts of the shared memory have the advice, by the kernel's own list of mappings."""
    segment = [each for each in mappings() if "muster-collectives" in each["name"]]
    slots = [each for each in segment if each["advised"]]
    region = comm.allocate(REGION_BYTES)
    registered = [each for each in mappings() if each["begin"] <= region.address < each["end"]]
    comm.barrier(LIMIT_S)
    return {
        "slots": sum(each["end"] - each["begin"] for each in slots),
        "registered": all(each["advised"] or each["huge"] for each in registered)
        and len(registered) == 1,
        "can": can_advise(),
    }


def huge(meeting: Meeting, comm: Communicator) -> dict[str, Any]:
    """A region where there are huge pages for one rank's part alone."""
    region = comm.allocate(HUGE_BYTES)
    own = next(each for each in mappings() if each["begin"] <= region.address < each["end"])
    values = array("f", range(HUGE_BYTES // 4))
    with region.view as view:
        view[:] = memoryview(values).cast("B")
        comm.run(
            Verb.ALL_REDUCE, source=region.address, target=region.address, count=len(values),
            dtype=DType.F32,
        )  # fmt: skip
        right = view.cast("f")[-1] == 2 * values[-1]
    comm.barrier(LIMIT_S)
    region.release()
    comm.barrier(LIMIT_S)
    left = [each for each in mappings() if each["huge"]]
    direct = comm.stats().paths[types.Path.DIRECT]
    return {"huge": own["huge"], "right": right, "left": len(left), "direct": direct}


def mappings() -> list[dict[str, Any]]:
    """Those of this process: where, what file, whether it has huge pages, or the advice."""
    found: list[dict[str, Any]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        begins = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if begins:
            begin, end = (int(word, 16) for word in begins.groups())
            found.append(
                {"begin": begin, "end": end, "name": line, "advised": False, "huge": False}
            )
        elif line.startswith("VmFlags:"):
            found[-1].update(advised="hg" in line.split(), huge="ht" in line.split())
    return found


def can_advise() -> bool:
    """Whether this kernel takes the advice for shared memory at all."""
    with mmap.mmap(-1, 4 << 20) as area:
        try:
            area.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError):
            return False
    return True


PLAYS = {each.__name__: each for each in (late, together, answers, pages, huge)}


def main(play: str) -> None:
    meeting = Meeting()
    comm = meeting.world()
    said = PLAYS[play](meeting, comm)
    meeting.say(**said)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1])
