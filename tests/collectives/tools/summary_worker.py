"""A rank whose groups leave summaries: `summary_worker SCENARIO [LATE RANKS]`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable

import numpy as np

from muster_collectives.core import new_group
from tests.collectives.faults.fault_worker import reduced
from tests.collectives.support.meeting import Meeting

STEPS, LATE_S = 20, 0.08  # far more than marks take to be seen
FLOATS = 256
SENT_BYTES = (1000, 0, 70_000)


def counts(meeting: Meeting) -> None:
    """Sums in the world and in a sub-group, messages around; rank 1 closes nothing."""
    world = meeting.world()
    world.store = meeting.store
    group = new_group(world, (0, 2))
    for _ in range(5):
        reduced(world, np.ones(FLOATS, np.float32))
    if group is not None:
        reduced(group, np.ones(FLOATS, np.float32))
    for bytes_ in SENT_BYTES:
        sent, got = np.ones(bytes_, np.uint8), np.zeros(bytes_, np.uint8)
        left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
        incoming = world.post_recv(int(got.ctypes.data), bytes_, left, 1)
        world.post_send(int(sent.ctypes.data), bytes_, right, 1).wait()
        incoming.wait()
    meeting.say()
    if meeting.rank == 1:
        meeting.keep = (world, group)  # type: ignore[attr-defined]
        return
    for each in (group, world):
        if each is not None:
            each.close()
            each.close()


def killed(meeting: Meeting) -> None:
    world = meeting.world()
    reduced(world, np.ones(FLOATS, np.float32))
    if meeting.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    meeting.say()
    world.close()


def forks(meeting: Meeting) -> None:
    """A child that ends as any program does, with its parent's group."""
    world = meeting.world()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    left = sorted(os.listdir(os.environ["COLLECTIVES_SUMMARY_DIR"]))
    reduced(world, np.ones(FLOATS, np.float32))
    meeting.say(left=left)
    world.close()


def refused(meeting: Meeting) -> None:
    """Two groups, and a folder that cannot be one."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for name in ("world", "again"):
        world = meeting.world(name)
        reduced(world, np.ones(FLOATS, np.float32))
        world.close()
    meeting.say()


def late(meeting: Meeting) -> None:
    """Some ranks come late to every step."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    ranks = tuple(map(int, sys.argv[2].split(","))) if sys.argv[2] else ()
    data = np.ones(FLOATS, np.float32)
    world = meeting.world()
    reduced(world, data)  # the first makes connections
    for step in range(STEPS):
        meeting.come_late(f"step-{step}", ranks, LATE_S)
        reduced(world, data)
    meeting.say()
    world.close()


SCENARIOS: dict[str, Callable[[Meeting], None]] = {
    each.__name__: each for each in (counts, killed, forks, refused, late)
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Meeting())
