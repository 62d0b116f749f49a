"""A rank in whose job something goes wrong: `fault_worker SCENARIO VICTIM`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from muster_collectives.core import CollectiveError, Communicator, DType, ForkError, Op, Verb
from tests.collectives.support.meeting import Meeting
from tests.collectives.support.watching import once_it_waits

WARM = 3  # operations that all ranks do before anything happens
SHORT_S = 2.0  # deadline of the operation that cannot end
LONG_S = 60.0  # what the fault itself must undercut
LARGE = 8 << 20  # elements of the large all-reduce
STEPS, LATE_S = 40, 0.1  # of a straggler; far more than marks take to be seen


class Guilty:
    """This rank: its group, whether it is the victim, and what it was told."""

    def __init__(self, meeting: Meeting, victim: int) -> None:
        self.meeting = meeting
        self.rank, self.victim = meeting.rank, victim
        self.is_victim = meeting.rank == victim
        self.comm = meeting.world()
        self.data = np.ones(4096, np.float32)
        for _ in range(WARM):
            self.all_reduce()

    def all_reduce(self, timeout_s: float = LONG_S, data: Any = None) -> None:
        reduced(self.comm, self.data if data is None else data, timeout_s)

    def gather(self) -> None:
        """Survivors begin the call that ends by its deadline together: one that the machine holds
        up until then would rightly be named beside the victim."""
        self.meeting.meet("short", {*range(self.meeting.size)} - {self.victim})

    def others_wait(self) -> None:
        """Returns when each other rank is where it waits: an abort before that may end the call
        that it comes from."""
        for rank in {*range(self.meeting.size)} - {self.rank}:
            self.meeting.wait_for_mark(f"waits-{rank}")

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Leaves the mark `waits-RANK` when this rank waits in the call that is made inside."""
        with once_it_waits(self.comm, lambda: self.meeting.mark(f"waits-{self.rank}")):
            yield

    def told(self, act: Callable[[], None]) -> dict[str, Any]:
        """What `act` raises, as words for the test; then the same again, at once."""
        began = time.monotonic()
        error = raised(act)
        ended = time.monotonic()
        words = described(error)
        words |= {"took_s": ended - began, "failed_at": ended}
        words["again"] = described(raised(self.all_reduce))["kind"]
        words["again_s"] = time.monotonic() - ended
        return words


def reduced(comm: Communicator, data: Any, timeout_s: float = LONG_S, op: Op = Op.SUM) -> None:
    address = int(data.ctypes.data)
    comm.run(
        Verb.ALL_REDUCE, source=address, target=address, count=len(data), dtype=DType.F32, op=op,
        timeout_s=timeout_s,
    )  # fmt: skip


def raised(act: Callable[[], None]) -> CollectiveError | None:
    try:
        act()
    except CollectiveError as error:
        return error
    return None


def described(error: CollectiveError | None) -> dict[str, Any]:
    if error is None:
        return {"kind": ""}
    return {
        "kind": type(error).__name__, "text": str(error), "ranks": list(error.ranks),
        "operation": error.operation, "group": error.group,
    }  # fmt: skip


def killed(own: Guilty) -> dict[str, Any]:
    """Dead before the operation that the others are in."""
    if own.is_victim:
        own.meeting.wait_for_mark("strike")
        os.kill(os.getpid(), signal.SIGKILL)
    own.meeting.mark(f"waits-{own.rank}")
    return own.told(own.all_reduce)


def killed_inside(own: Guilty) -> dict[str, Any]:
    """The test kills it while large sums are on their way."""
    data = np.ones(LARGE, np.float32)

    def sums() -> None:
        while True:
            own.all_reduce(data=data)
            own.meeting.mark(f"busy-{own.rank}")

    return own.told(sums)


def stopped(own: Guilty) -> dict[str, Any]:
    """Frozen for longer than the deadline, then awake again."""
    if own.is_victim:
        os.kill(os.getpid(), signal.SIGSTOP)  # until the test wakes it
        return own.told(lambda: own.all_reduce(SHORT_S))
    own.gather()
    words = own.told(lambda: own.all_reduce(SHORT_S))
    own.meeting.mark(f"told-{own.rank}")
    return words


def raises(own: Guilty) -> dict[str, Any]:
    """A script that ends by an exception."""
    if own.is_victim:
        raise ValueError("bad batch")
    return own.told(own.all_reduce)


def closes(own: Guilty) -> dict[str, Any]:
    """Says good-bye while the others go on, and lives."""
    if own.is_victim:
        own.comm.close()
        own.meeting.wait_for_mark("told")
        return {"kind": ""}
    return own.told(own.all_reduce)


def skips(own: Guilty) -> dict[str, Any]:
    """Does not come to operation WARM + 1, as if a branch of its script had left it out."""
    if own.is_victim:
        own.meeting.wait_for_mark("told")
        return own.told(lambda: own.all_reduce(SHORT_S))
    own.gather()
    return own.told(lambda: own.all_reduce(SHORT_S))


def aborts(own: Guilty) -> dict[str, Any]:
    """A thread of the victim ends the call of all; then they meet again, twenty times."""
    late = own.rank == (own.victim + 1) % own.meeting.size
    if late:  # it learns of it in its own next call
        own.meeting.wait_for_mark(f"told-{own.victim}")
    with once_it_waits(own.comm, own.comm.abort) if own.is_victim else nullcontext():
        words = own.told(own.all_reduce)
    own.meeting.mark(f"told-{own.rank}")
    own.comm.close()
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(20):
        comm = own.meeting.world(f"again-{turn}")
        data = np.full(17, 1.0, np.float32)
        reduced(comm, data)
        words["right"] = bool((data == own.meeting.size).all())
        comm.close()
    words["descriptors"] = len(os.listdir("/proc/self/fd")) - before
    own.comm = own.meeting.world("last")
    return words


def aborts_idle(own: Guilty) -> dict[str, Any]:
    """The victim ends the call of all and is in none itself; it lives on with the group open."""
    if not own.is_victim:
        with own.marked():
            return own.told(own.all_reduce)
    return _abort_in_no_call(own)


def aborts_early(own: Guilty) -> dict[str, Any]:
    """As before, but nobody is in a call: the others learn of it in their next one."""
    if own.is_victim:
        return _abort_in_no_call(own)
    own.meeting.mark(f"waits-{own.rank}")
    own.meeting.wait_for_mark("aborted")
    return own.told(own.all_reduce)


def aborts_receives(own: Guilty) -> dict[str, Any]:
    """As before; the others wait for messages that nobody sends, from one another."""
    if own.is_victim:
        return _abort_in_no_call(own)
    peer = next(rank for rank in range(own.meeting.size) if rank not in (own.rank, own.victim))
    posted = own.comm.post_recv(int(own.data.ctypes.data), 64, peer, 7, LONG_S)
    own.meeting.mark(f"waits-{own.rank}")
    return own.told(posted.wait)


def aborts_leaves(own: Guilty) -> dict[str, Any]:
    """As `aborts_early`, but the victim's process has ended before the others' next call."""
    if own.is_victim:
        own.others_wait()
        own.comm.abort()
        return {"kind": ""}
    own.meeting.mark(f"waits-{own.rank}")
    own.meeting.wait_for_mark("left")
    return own.told(own.all_reduce)


def _abort_in_no_call(own: Guilty) -> dict[str, Any]:
    own.others_wait()
    aborted_at = time.monotonic()
    own.comm.abort()
    own.meeting.mark("aborted")
    own.meeting.wait_for_mark("told")
    return {"kind": "", "aborted_at": aborted_at}


def execs(own: Guilty) -> dict[str, Any]:
    """The victim becomes another program, as a script does that starts itself anew."""
    if own.is_victim:
        wait = 'while [ ! -e "$0" ]; do sleep 0.05; done'
        os.execv("/bin/sh", ["/bin/sh", "-c", wait, str(own.meeting.folder / "mark-told")])
    return own.told(own.all_reduce)


def reopens(own: Guilty) -> dict[str, Any]:
    """The victim, which comes late, closes other descriptors of all its files."""
    if own.is_victim:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                os.close(os.open(f"/proc/self/fd/{name}", os.O_RDWR | os.O_NONBLOCK))
        own.meeting.wait_for_mark("strike")
    with own.marked() if not own.is_victim else nullcontext():
        return own.told(own.all_reduce)


def forks(own: Guilty) -> dict[str, Any]:
    """A forked child may not use the group, and its end does not harm it."""
    child = os.fork()
    if child == 0:
        code = 0 if isinstance(raised(own.all_reduce), ForkError) else 1
        own.comm.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    own.data[:] = 1
    own.all_reduce()
    right = bool((own.data == own.meeting.size).all())
    return {"kind": "", "child": os.waitstatus_to_exitcode(status), "right": right}


def straggles(own: Guilty) -> dict[str, Any]:
    """The victim comes last to every step for some seconds (COLLECTIVES_STRAGGLER_S is short)."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for step in range(STEPS):
        own.meeting.come_late(f"step-{step}", (own.victim,), LATE_S)
        own.all_reduce()
    return {"kind": "", "waits": list(own.comm.waits_s())}


def works(own: Guilty) -> dict[str, Any]:
    """Nothing goes wrong; says over what."""
    own.data[:] = own.rank
    own.all_reduce()
    right = bool((own.data == sum(range(own.meeting.size))).all())
    return {
        "kind": "", "right": right, "nodes": list(own.comm.nodes),
        "why": list(own.comm.why),
    }  # fmt: skip


def interrupted(own: Guilty) -> dict[str, Any]:
    """Ctrl-C for a rank that waits for another; `victim` is the one that is waited for."""
    if own.is_victim:
        own.meeting.wait_for_mark("told")
        return own.told(lambda: own.all_reduce(SHORT_S))
    try:
        with own.marked():
            return own.told(own.all_reduce)
    except KeyboardInterrupt:
        at_s = time.monotonic()
        again = described(raised(own.all_reduce))["kind"]
        return {"kind": "KeyboardInterrupt", "at_s": at_s, "again": again}


def cut(own: Guilty) -> dict[str, Any]:
    """The test cuts the link of a node; nobody has died."""
    own.meeting.mark(f"ready-{own.rank}")
    own.meeting.wait_for_mark("cut")
    return own.told(lambda: own.all_reduce(SHORT_S))


def handled(own: Guilty) -> dict[str, Any]:
    """A handler that raises nothing leaves the call as it is; it may not call the group itself."""
    found: list[dict[str, Any]] = []

    def handle(number: int, frame: object) -> None:
        at_s = time.monotonic()
        found.append({"at_s": at_s, **described(raised(own.all_reduce))})
        own.meeting.mark(f"handled-{own.rank}")

    signal.signal(signal.SIGTERM, handle)
    own.data[:] = own.rank
    if own.is_victim:
        own.meeting.wait_for_mark("told")
    with own.marked():
        own.all_reduce()
    right = bool((own.data == sum(range(own.meeting.size))).all())
    return {"kind": "", "right": right, "handler": found}


SCENARIOS: dict[str, Callable[[Guilty], dict[str, Any]]] = {
    each.__name__: each
    for each in (killed, killed_inside, stopped, raises, closes, skips, aborts, aborts_idle,
                 aborts_early, aborts_receives, aborts_leaves, execs, reopens, forks, straggles,
                 works, interrupted, handled, cut)
}  # fmt: skip


def main(scenario: str, victim: int) -> None:
    meeting = Meeting()
    own = Guilty(meeting, victim)
    meeting.say(**SCENARIOS[scenario](own))
    own.comm.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
