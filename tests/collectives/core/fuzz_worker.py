"""A rank of a random sequence: `fuzz_worker STEPS SEED`.

All ranks draw the same steps in the same order and take part in those of their own groups: calls of
every verb, messages that are under way during later steps, registered memory that comes and goes.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from typing import NamedTuple

import numpy as np

from muster_collectives.binding.memory import Region
from muster_collectives.binding.requests import Request
from muster_collectives.core import Communicator, DType
from tests.collectives.core.checks import LIMIT_S, Checker, WrongError
from tests.collectives.core.ops_worker import sizes_of
from tests.collectives.core.reference import Array, ops_of
from tests.collectives.support.meeting import Meeting

GROUPS = ((0, 1, 2, 3, 4), (0, 1, 2), (2, 3, 4), (4, 0), (1, 3), (3,), (4, 2, 0, 1))
NAMES = (
    "all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather", "scatter",
    "all_to_all", "all_to_all_uneven", "barrier",
)  # fmt: skip
DIRECT = ("all_reduce", "reduce_scatter", "all_gather")
REGIONS, REGION_BYTES = 2, 1 << 16  # of a group: for inputs and results in turns
MESSAGE_BYTES = (0, 1, 63, 4097, 70_001)
UNDER_WAY = 6  # messages of a group


class Letter(NamedTuple):
    """A message from the rank `source` and one to another, both of `bytes`."""

    incoming: Request
    outgoing: Request
    room: Array
    data: Array  # the memory of what is sent must live
    source: int
    tag: int
    bytes: int


class Group:
    """One communicator and what is under way in it."""

    def __init__(self, comm: Communicator, seed: int) -> None:
        self.comm = comm
        self.check = Checker(comm, seed)
        self.letters: deque[Letter] = deque()
        self.regions: list[Region] = []
        self._turn = 0

    def call(self, chance: random.Random, salt: int) -> None:
        dtype = DType(chance.choice(list(DType)))
        op, sizes = chance.choice(ops_of(dtype)), sizes_of(dtype)[:-1]
        size, name = chance.choice(sizes), chance.choice(NAMES)
        fresh = self.check.memory
        if self.regions and chance.random() < 0.6:
            self.check.memory = self._registered
            if chance.random() < 0.7:  # what the core then does in the ranks' own memory
                size, name = chance.choice(sizes[-3:]), chance.choice(DIRECT)
        if name == "barrier":
            self.check.barrier()
        elif "reduce" in name:
            getattr(self.check, name)(dtype, op, size, salt)
        else:
            getattr(self.check, name)(dtype, size, salt)
        self.check.memory = fresh

    def post(self, chance: random.Random, tag: int) -> None:
        """To the rank some places on, from the one as many places before."""
        comm = self.comm
        count, longer = chance.choice(MESSAGE_BYTES), chance.choice((0, 100))
        distance, named = chance.randrange(1, 16), chance.random() < 0.7
        distance = 1 + distance % max(1, comm.size - 1)
        if comm.size == 1 or len(self.letters) == UNDER_WAY:
            return
        source = (comm.rank - distance) % comm.size
        room, data = np.full(count + longer, 0x5A, np.uint8), _bytes(comm.rank, tag, count)
        incoming = comm.post_recv(
            int(room.ctypes.data), room.nbytes, source if named else None, tag, LIMIT_S
        )
        target = (comm.rank + distance) % comm.size
        outgoing = comm.post_send(int(data.ctypes.data), count, target, tag, LIMIT_S)
        self.letters.append(Letter(incoming, outgoing, room, data, source, tag, count))

    def settle(self, chance: random.Random) -> None:
        """Ends any of the messages that are under way."""
        self.letters.rotate(chance.randrange(UNDER_WAY))
        if not self.letters:
            return
        letter = self.letters.popleft()
        status = letter.incoming.wait(LIMIT_S)
        letter.outgoing.wait(LIMIT_S)
        if (status.peer, status.tag, status.bytes) != (letter.source, letter.tag, letter.bytes):
            raise WrongError(f"a message of {letter.bytes} with tag {letter.tag}: {status}")
        expected = _bytes(letter.source, letter.tag, letter.bytes)
        if (letter.room[: letter.bytes] != expected).any():
            raise WrongError(f"a message of {letter.bytes} with tag {letter.tag}: other bytes")
        if (letter.room[letter.bytes :] != 0x5A).any():
            raise WrongError("a message was written beyond its end")

    def register(self) -> None:
        """All regions come, or all go."""
        if not self.regions:
            self.regions = [self.comm.allocate(REGION_BYTES) for _ in range(REGIONS)]
            return
        for region in self.regions:
            region.release()
        self.regions.clear()

    def end(self, chance: random.Random) -> None:
        while self.letters:
            self.settle(chance)
        if self.regions:
            self.register()
        self.comm.close()

    def _registered(self, bytes_: int) -> Array:
        self._turn += 1
        region = self.regions[self._turn % REGIONS]
        return np.frombuffer(region.view, np.uint8, bytes_)


def _bytes(rank: int, tag: int, count: int) -> Array:
    return ((np.arange(count) * 7 + rank * 31 + tag * 3) % 251).astype(np.uint8)


def main(steps: int, seed: int) -> None:
    meeting = Meeting()
    groups = {
        ranks: Group(meeting.group(f"group-{number}", ranks), seed)
        for number, ranks in enumerate(GROUPS)
        if meeting.rank in ranks
    }
    draws = random.Random(seed)
    for group in groups.values():
        group.register()
    for step in range(1, steps + 1):
        ranks, what, own = draws.choice(GROUPS), draws.random(), draws.randrange(1 << 30)
        if ranks not in groups:
            continue
        try:
            _step(groups[ranks], what, random.Random(own), step)
        except AssertionError as error:
            raise WrongError(f"step {step}, group {ranks}: {error}") from error
    calls = sum(group.check.calls for group in groups.values())
    every = [group.comm.stats() for group in groups.values()]
    direct = sum(
        count for stats in every for path, count in stats.paths.items() if path.name == "DIRECT"
    )
    messages = sum(stats.receives for stats in every)
    for group in groups.values():
        group.end(draws)
    meeting.say(calls=calls, direct=direct, messages=messages)


def _step(group: Group, what: float, chance: random.Random, step: int) -> None:
    if what < 0.65:
        group.call(chance, step)
    elif what < 0.8:
        group.post(chance, step)
    elif what < 0.92:
        group.settle(chance)
    else:
        group.register()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
