"""The names under which torch finds the backend, and how it makes a group."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch.distributed as dist

from muster_collectives.runtime import machine, settings
from muster_collectives.runtime.summary import Identity
from muster_collectives.torch.creation import Made, group_timeout_s, make_communicator, member_text
from muster_collectives.torch.delegates import Device, Fallback
from muster_collectives.torch.group import MusterProcessGroup
from muster_collectives.torch.group_state import GroupState
from muster_collectives.torch.works.op_queue import OpQueue

__all__ = ["NAMES", "create", "register"]

NAMES = ("muster", "smddp")


def register() -> None:
    """Makes the backends known to torch; what is known stays as it is."""
    if not dist.is_available():
        return
    for name in NAMES:
        if name.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, backend_options: Any = None) -> MusterProcessGroup:
    """A group; all its ranks call it together. torch does, with its extended options."""
    members = [int(rank) for rank in options.global_ranks_in_group]
    # a name that comes back with other members must not meet those of its earlier life
    text = ",".join(map(str, members)) or f"all {options.group_size}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return make_group(
        dist.PrefixStore(f"muster-{digest}", options.store),
        int(options.group_rank),
        int(options.group_size),
        member_text(str(options.group_id), members),
        members or list(range(int(options.group_size))),
        group_timeout_s(options.timeout, os.environ),
    )


def make_group(
    store: Any, rank: int, size: int, name: str, members: list[int], timeout_s: float
) -> MusterProcessGroup:
    """A group of its own store. Raises what `make_communicator` raises."""
    made = make_communicator(store, rank, size, name, timeout_s)
    nodes = made.communicator.nodes if made.communicator is not None else (0,) * size
    below = dist.PrefixStore(made.life, store)

    def host_group() -> MusterProcessGroup:
        """Of the host-staged device path: a group of its own, for it has a thread of its own."""
        inside = dist.PrefixStore("host", below)
        return make_group(inside, rank, size, f"{name}, host sums", members, timeout_s)

    state = GroupState(
        Identity(name, rank, size, tuple(members), made.life, "torch"),
        made.communicator,
        made.why,
        OpQueue(name, is_eager(made, rank), made.communicator),
        Fallback(dist.PrefixStore("gloo", below), rank, size, timeout_s),
        Device(dist.PrefixStore("device", below), rank, nodes, timeout_s, host_group),
    )
    if made.communicator is None:
        _ = state.fallback.group  # now, while all ranks are here
    return MusterProcessGroup(state, timeout_s)


def is_eager(made: Made, rank: int) -> bool:
    """Whether asynchronous calls go to a thread at once: there are processors to spare."""
    way = settings.current().asynchronous
    if way:
        return way == "lane"
    locals_ = 1
    if made.communicator is not None:
        nodes = made.communicator.nodes
        locals_ = nodes.count(nodes[rank])
    named = os.environ.get("LOCAL_WORLD_SIZE", "")
    if named.isdigit():  # a sub-group shares the processors with the other ranks of the node
        locals_ = max(locals_, int(named))
    return machine.processors() > locals_
