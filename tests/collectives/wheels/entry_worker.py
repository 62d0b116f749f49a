"""A rank that plays the core's entry and its signals with the standard library alone, so that any
Python can run it: `entry_worker`."""

from __future__ import annotations

import platform
import signal
import sys
from array import array
from typing import Any

from muster_collectives.core import AbortedError, ClosedError, DType, Op, Verb
from tests.collectives.support.meeting import Meeting

CALLS, GROUPS = 2000, 8


class Rung(Exception):  # noqa: N818
    """What a signal handler raises in the midst of a call."""


def ring(number: int, frame: object) -> None:
    raise Rung


def main() -> None:
    meeting = Meeting()
    comm = meeting.world()
    right = True
    for step in range(CALLS):
        data = array("f", [comm.rank + step, 1.0])
        comm.all_reduce(data)
        right &= data.tolist() == [2 * step + 1.0, 2.0]
    counts = [1, 2] if comm.rank == 0 else [2, 1]
    given = array("q", range(10 * comm.rank, 10 * comm.rank + 3))
    got = array("q", [-1] * 3)
    comm.all_to_all(got, given, counts, counts)
    right &= got.tolist() == ([0, 10, 11] if comm.rank == 0 else [1, 2, 12])
    for turn in range(GROUPS):  # entries come and go, and their calls with them
        with meeting.world(f"turn-{turn}") as other:
            other.barrier()
    meeting.say(
        python=platform.python_version(), right=right,
        refused=refused(comm), interrupted=interrupted(meeting), kept=kept(comm),
    )  # fmt: skip
    comm.close()
    try:
        comm.post_send(data.buffer_info()[0], 8, 1 - comm.rank, 0)
    except ClosedError:
        return
    raise AssertionError("a send of a group that is closed")


def refused(comm: Any) -> list[str]:
    """What becomes of wrong arguments: an exception or a code; the group goes on."""
    run = comm._run_core
    fine = (Verb.BARRIER, DType.U8, Op.SUM, 0, 0, 0, 0, 0, 0, 0, 60.0)
    found = []
    for wrong in (("barrier", *fine[1:]), (*fine[:-1], "soon"), fine[:-1], (-1, *fine[1:])):
        try:
            found.append(str(run(*wrong)))
        except (TypeError, OverflowError) as error:
            found.append(type(error).__name__)
    whole = (0, 1, 2, 3, 4, 5, 60.0)  # of a send; a wait for it is shorter
    for call, fine in ((comm._post_core, whole), (comm.wait_core, (7, 0.0, 0, 0))):
        for wrong in ((None, *fine[1:]), (-1, *fine[1:]), fine[:-1]):
            try:
                found.append(str(call(*wrong)))
            except (TypeError, OverflowError) as error:
                found.append(type(error).__name__)
    comm.barrier()
    return found


def kept(comm: Any) -> bool:
    """Whether calls leave the counts of references as they were."""
    data, op = array("d", [1.0]), Op.MAX
    before = [sys.getrefcount(each) for each in (data, op, Verb.ALL_REDUCE, None, 60.0)]
    for _ in range(100):
        comm.all_reduce(data, op, timeout_s=60.0)
    after = [sys.getrefcount(each) for each in (data, op, Verb.ALL_REDUCE, None, 60.0)]
    return max(abs(new - old) for new, old in zip(after, before, strict=True)) < 50


def interrupted(meeting: Meeting) -> str:
    """What rank 0 gets whose handler raises while it waits, and rank 1 that comes afterwards."""
    with meeting.world("interrupted") as comm:
        if comm.rank == 0:
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        else:
            meeting.wait_for_mark("rung")
        try:
            comm.barrier()
        except (Rung, AbortedError) as error:
            meeting.mark("rung")
            return type(error).__name__
        return ""


if __name__ == "__main__":
    main()
