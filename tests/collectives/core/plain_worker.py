"""A rank that sums with the standard library alone and says over what: `plain_worker`."""

from __future__ import annotations

import logging
from array import array

import muster_collectives
from muster_collectives.core import new_group
from tests.collectives.support.meeting import Meeting


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    meeting = Meeting()
    world = meeting.world()
    world.store = meeting.store
    groups = [world, new_group(world, range(world.size)), new_group(world, range(world.size))]
    right = True
    for group in groups:
        assert group is not None
        data = array("f", [world.rank + 1.0] * 1000)
        group.all_reduce(data)
        right &= set(data) == {world.size * (world.size + 1) / 2}
    for group in reversed(groups):
        assert group is not None
        group.close()
    meeting.say(right=right, transport=world.transport, place=muster_collectives.__file__)


if __name__ == "__main__":
    main()
