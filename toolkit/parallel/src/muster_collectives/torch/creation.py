"""The names under which torch finds the backend, and how it makes a group.

A group must always start. All ranks say first whether they can load the core; where one cannot, all
of them use gloo. Where the core is there but the group cannot be made with it, gloo too, and the
reason is said once. Only ranks that do not come, or make another group, are errors.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.binding import library
from muster_collectives.binding.communicator import Communicator
from muster_collectives.bootstrap.agreement import Agreement
from muster_collectives.bootstrap.connect import make
from muster_collectives.runtime import machine, settings
from muster_collectives.runtime.errors import (
    CollectiveError,
    CoreError,
    ResourceError,
    SettingsError,
)
from muster_collectives.runtime.summary import Identity
from muster_collectives.torch.cuda.settings import read_settings as read_device_settings
from muster_collectives.torch.cuda.stock import stock_group
from muster_collectives.torch.group import MusterProcessGroup
from muster_collectives.torch.group_state import Device, Fallback, GroupState
from muster_collectives.torch.store import TorchStore
from muster_collectives.torch.works.op_queue import OpQueue

_log = logging.getLogger("muster_collectives")
_SHOWN_RANKS = 8


@dataclass(frozen=True)
class Made:
    """What a new process group is made of. `communicator` None: CPU tensors go to gloo, `why` says
    the reason. `generation` is the prefix in the store that only this making of the group has;
    `asynchronous` what Settings say of it."""

    communicator: Communicator | None
    generation: str
    why: str = ""
    asynchronous: str = ""


def member_text(group_id: str, ranks: list[int]) -> str:
    """A group's name as errors say it: `world`, or its name and its global ranks."""
    if not ranks:
        return "world"
    shown = " ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" ... {ranks[-1]}" if len(ranks) > _SHOWN_RANKS else ""
    return f"{group_id} (global ranks {shown}{more})"


def group_timeout_s(timeout: timedelta | None, environ: Mapping[str, str]) -> float:
    """The group's deadline: what the program said; COLLECTIVES_TIMEOUT_S where it said nothing."""
    default: timedelta = dist.distributed_c10d.default_pg_timeout
    if timeout is not None and timeout != default:
        return timeout.total_seconds()
    try:
        named = float(environ.get("COLLECTIVES_TIMEOUT_S", "") or 0)
    except ValueError:
        named = 0.0  # the core's settings raise for it
    return named if named > 0 else default.total_seconds()


def make_communicator(store: Any, rank: int, size: int, name: str, timeout_s: float) -> Made:
    """Collective over the group's ranks. Raises on all of them CollectiveTimeout that names who has
    not come, RendezvousError, and SettingsError where a variable of one of them cannot be used."""
    agreement = Agreement(TorchStore(store), rank, size, name, timeout_s, falls_back=True)
    communicator, failed = None, ""
    try:
        usable = _usable()
        if isinstance(usable, CollectiveError):
            agreement.fail(usable)
        communicator = make(agreement, usable, os.environ)
    except CollectiveError as error:
        if agreement.is_settled:
            failed = str(error)
        elif isinstance(error, (CoreError, ResourceError)):  # of one rank, and told to all
            fix = f" (fix: {error.fix})" if error.fix else ""
            why = error.message.removeprefix(f"group {name!r}: ") + fix
            if rank == 0:
                _tell_once(why)
            return Made(None, agreement.generation, why)
        else:
            raise
    except OSError as error:
        failed = str(error) or type(error).__name__
    try:
        words = agreement.vote(failed)
    except BaseException:
        if communicator is not None:
            communicator.close()
        raise
    if not words:
        assert isinstance(usable, settings.Settings)
        return Made(communicator, agreement.generation, asynchronous=usable.asynchronous)
    if communicator is not None:
        communicator.close()
    why = _said("the group could not be made with the core", words)
    if rank == 0:
        _log.warning("group %r: %s; CPU tensors go to gloo", name, why)
    return Made(None, agreement.generation, why)


def _usable() -> settings.Settings | CollectiveError:
    """What this rank makes the group with, or why it cannot use the core."""
    try:
        found = settings.current()
        read_device_settings(os.environ)
        if found.gloo:
            return CoreError("COLLECTIVES_GLOO=1")
        library.load(found.core)
        return found
    except (SettingsError, CoreError) as error:
        # another one, for that one holds the frames of this call, and so torch's store, which ends
        # the process where it outlives torch
        return type(error)(error.message, error.fix)


@functools.cache
def _tell_once(why: str) -> None:
    """Every group of a process lacks the core for the same reason: the first one says so."""
    _log.warning("%s; CPU tensors go to gloo", why)


def _said(what: str, words: Mapping[int, str]) -> str:
    rank = min(words)
    return f"{what}: rank {rank}: {words[rank].splitlines()[0]}"


NAMES = ("muster", "smddp")


def register() -> None:
    """Makes the backends known to torch; what is known stays as it is."""
    for name in NAMES:
        if name.upper() not in dist.Backend._plugins:
            dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, backend_options: Any = None) -> MusterProcessGroup:
    """A group; all its ranks call it together. torch does, with its extended options."""
    stock = stock_group(sys._getframe(1), NAMES, options, backend_options)
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
        stock,
    )


def make_group(
    store: Any,
    rank: int,
    size: int,
    name: str,
    members: list[int],
    timeout_s: float,
    stock: Any = None,
) -> MusterProcessGroup:
    """A group of its own store; `stock`: torch's, for CUDA tensors. Raises what
    `make_communicator` raises."""
    made = make_communicator(store, rank, size, name, timeout_s)
    nodes = made.communicator.nodes if made.communicator is not None else (0,) * size
    if made.communicator is not None:
        made.communicator.world_ranks = tuple(members)
    below = dist.PrefixStore(made.generation, store)

    def host_group() -> MusterProcessGroup:
        """Of the host-staged device path: a group of its own, for it has a thread of its own."""
        inside = dist.PrefixStore("host", below)
        return make_group(inside, rank, size, f"{name}, host sums", members, timeout_s)

    def split(child: Any, ranks: Sequence[int], timeout: timedelta | None) -> MusterProcessGroup:
        """Of these ranks of ours, over a stock group that was split from ours."""
        inside, theirs = child.get_group_store(), [members[each] for each in ranks]
        limit_s = group_timeout_s(timeout, os.environ)
        label = member_text(child.group_name, theirs)
        part = make_group(inside, child.rank(), child.size(), label, theirs, limit_s, child)
        part.setGroupName(child.group_name)
        part.setGroupDesc(child.group_desc)
        return part

    state = GroupState(
        Identity(name, rank, size, tuple(members), made.generation, "torch"),
        made.communicator,
        made.why,
        OpQueue(name, is_eager(nodes, rank, made.asynchronous), made.communicator),
        Fallback(dist.PrefixStore("gloo", below), rank, size, timeout_s),
        Device(dist.PrefixStore("device", below), rank, nodes, timeout_s, host_group, stock),
        split,
    )
    if made.communicator is None:
        _ = state.fallback.group  # now, while all ranks are here
    return MusterProcessGroup(state, timeout_s)


def is_eager(nodes: Sequence[int], rank: int, way: str) -> bool:
    """Whether asynchronous calls go to a thread at once: there are processors to spare, or the
    person has chosen the `way`."""
    if way:
        return way == "lane"
    locals_ = nodes.count(nodes[rank])
    named = os.environ.get("LOCAL_WORLD_SIZE", "")
    if named.isdigit():  # a sub-group shares the processors with the other ranks of the node
        locals_ = max(locals_, int(named))
    return machine.processors() > locals_
