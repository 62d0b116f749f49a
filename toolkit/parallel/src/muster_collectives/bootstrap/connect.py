"""Makes a group: claims, one plan for all, locality by proof, then the core."""

from __future__ import annotations

import functools
import hmac
import logging
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from muster_collectives.binding import abi, core_group, library, shared_memory
from muster_collectives.binding.communicator import Communicator
from muster_collectives.bootstrap import node_info
from muster_collectives.bootstrap.addresses import Place, open_endpoint
from muster_collectives.bootstrap.agreement import Agreement, Said
from muster_collectives.bootstrap.locality import find_locality
from muster_collectives.bootstrap.node_info import GroupPlan, NodeInfo
from muster_collectives.runtime import machine
from muster_collectives.runtime.errors import (
    CollectiveError,
    RendezvousError,
    ResourceError,
    UsageError,
)
from muster_collectives.runtime.layout import KEY_BYTES, Addresses, GroupLayout
from muster_collectives.runtime.messages import DESCRIPTORS_FIX, NO_DESCRIPTOR
from muster_collectives.runtime.settings import Settings
from muster_collectives.runtime.settings import read as read_settings
from muster_collectives.runtime.store import LocalStore, PrefixStore, Store
from muster_collectives.runtime.summary import Identity, Summary
from muster_collectives.runtime.tuning import Tuning, decode, differences
from muster_collectives.runtime.types import Code

# a listener, its epoll, an eventfd, memory; and one for what is read from files and /proc meanwhile
_DESCRIPTORS = 8
_log = logging.getLogger("muster_collectives")


def connect(
    store: Store,
    rank: int,
    size: int,
    *,
    name: str,
    timeout_s: float | None = None,
    tuning: Tuning | None = None,
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
    global_ranks: Sequence[int] | None = None,
    layer: str | None = "core",
) -> Communicator:
    """The group `name` of `size` ranks, called by all of them; the keys in `store` begin with its
    name. What one rank cannot do is raised on all.

    `settings` are read from `environ` (the process's) unless given; `tuning` takes the place of
    theirs, and rank 0's counts for all. `timeout_s` bounds this call and is the deadline of calls
    that give none. `global_ranks` (its own numbers without it) and `layer` are for the summary of
    the run; `layer` None: the caller writes that itself. Raises CollectiveTimeout that names who
    has not come, SettingsError, RendezvousError, ResourceError, and CoreError where a rank cannot
    use the compiled core.
    """
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} of {size} cannot be", "a rank from 0 to the size less one")
    environ = os.environ if environ is None else environ
    settings = settings or read_settings(environ)
    if tuning is not None:
        settings = replace(settings, tuning=tuning, is_spin_given=True, is_slot_given=True)
    limit_s = settings.timeout_s if timeout_s is None else timeout_s
    within = PrefixStore(store if size > 1 else LocalStore(), f"muster/{name}")
    agreement = Agreement(within, rank, size, name, limit_s)
    made = make(agreement, settings, environ)
    made.global_ranks = members = tuple(range(size) if global_ranks is None else global_ranks)
    made.world_ranks = tuple(global_ranks or ())
    if layer is not None and settings.summary_dir:
        made.summary = Summary(
            Identity(name, rank, size, members, agreement.generation, layer), settings.summary_dir
        )
        core_group.summed.add(made)
    return made


def make(agreement: Agreement, settings: Settings, environ: Mapping[str, str]) -> Communicator:
    """The group of the ranks of `agreement`, which have not met. Raises as `connect`."""
    place = Place()
    try:
        try:
            if agreement.size > 1:
                _require_descriptors()
                place = open_endpoint(settings, environ)
            info = _node_info(settings, place, agreement.group)
        except CollectiveError as error:  # the others wait for a word of this rank
            agreement.fail(error)
        except OSError as error:
            what = f"it cannot look at its machine: {error}"
            fix = DESCRIPTORS_FIX if error.errno in NO_DESCRIPTOR else "look at this host's limits"
            agreement.fail(ResourceError(what, fix, code=Code.ESYS))
        layout = agreement.meet(
            node_info.encode_node_info(info),
            lambda said: _decide(said, settings),
            lambda answer: _layout(agreement, answer, settings),
        )
        limit_s = agreement.timeout_s
        return Communicator(layout, settings, agreement.group, limit_s, create_s=agreement.left_s)
    finally:
        if place.endpoint:
            library.load(settings.core).mc_endpoint_close(place.endpoint)  # unless a group has it


def _require_descriptors() -> None:
    """That there are as many as making a group may take at a time: so that a rank without them says
    so while the others listen, and none of them waits for it. Raises ResourceError."""
    held: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in NO_DESCRIPTOR:
            raise
        what = f"it has {len(held)} descriptors left and needs {_DESCRIPTORS} for a group"
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        why = f"{error.strerror}, of {limit} that it may have"
        raise ResourceError(f"{what} ({why})", DESCRIPTORS_FIX, code=Code.ESYS) from error
    finally:
        for fd in held:
            os.close(fd)


def _node_info(settings: Settings, place: Place, group: str) -> NodeInfo:
    """Raises CoreError."""
    return NodeInfo(
        abi=int(library.load(settings.core).mc_abi()),
        boot=machine.boot_id(),
        pid_namespace=machine.namespace("pid"),
        net_namespace=machine.namespace("net"),
        shm=machine.device_of(shared_memory.SHM_FOLDER),
        shm_bytes=machine.bytes_of(shared_memory.SHM_FOLDER),
        memfd=shared_memory.can_memfd(),
        node=settings.node,
        processors=machine.processors(),
        hosts=place.hosts,
        port=place.port,
        endpoint=place.endpoint,
        is_spin_given=settings.is_spin_given,
        is_slot_given=settings.is_slot_given,
        tuning=settings.tuning,
        key_mark=node_info.key_mark(settings.key, group),
    )


def _decide(said: Sequence[Said], settings: Settings) -> Said:
    """On rank 0."""
    with _version_checked("a rank speaks another version of this library"):
        found = [node_info.decode_node_info(words) for words in said]
    plan = node_info.plan(found)
    return {
        **node_info.encode_plan(plan),
        "key": os.urandom(KEY_BYTES).hex(),
        "notes": list(settings.notes),
        "asked": node_info.encode_node_info(found[0])["tuning"],
    }


@contextmanager
def _version_checked(what: str) -> Iterator[None]:
    """Words that cannot be read are a RendezvousError that says `what`."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RendezvousError(
            f"{what}: {error}", "install the same muster-parallel everywhere"
        ) from error


def _read(answer: Said, settings: Settings, rank: int) -> tuple[GroupPlan, bytes]:
    with _version_checked(f"rank 0 speaks another version of this library than rank {rank}"):
        plan = node_info.decode_plan(answer)
        key = bytes.fromhex(answer["key"])
    # who reads the store but has not the job's secret cannot join either
    return plan, hmac.digest(settings.key, key, "sha256") if settings.key else key


def _say(answer: Said, settings: Settings, plan: GroupPlan, rank: int) -> None:
    """Notes: rank 0 says its own, the others what differs."""
    known = set() if rank == 0 else set(answer["notes"])
    for note in settings.notes:
        if note not in known:
            say_once(note)
    asked = decode(answer["asked"])
    mine = settings.tuning if settings.is_spin_given else replace(
        settings.tuning, spin_s=asked.spin_s
    )  # fmt: skip
    other = differences(mine, asked)
    if other:
        say_once(f"rank {rank} had other sizes than rank 0, whose count: {other}")


@functools.lru_cache(maxsize=256)
def say_once(note: str) -> None:
    """One line of the log per process and note."""
    _log.warning("%s", note)


def _layout(agreement: Agreement, answer: Said, settings: Settings) -> GroupLayout:
    """From rank 0's answer to where all ranks are; its descriptors are the caller's."""
    plan, key = _read(answer, settings, agreement.rank)
    _say(answer, settings, plan, agreement.rank)
    core, raw = library.load(settings.core), library.raw_tuning(plan.tuning)

    def bytes_of(locals_: int) -> int:
        return int(core.mc_segment_bytes(locals_, abi.at(raw)))

    place = find_locality(agreement, plan, bytes_of)
    between = len(set(place.nodes)) > 1
    return GroupLayout(
        rank=agreement.rank, size=agreement.size, nodes=place.nodes, shm_method=place.shm_method,
        segment_fd=place.fd, why=place.why,
        addresses=plan.addresses if between else Addresses(), key=key, tuning=plan.tuning,
    )  # fmt: skip
