"""The groups of this rank: one process group for tensors and one for objects for each kind.

Objects travel over gloo, beside the tensors' groups, so that neither waits for the other's order.
"""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster_modelparallel.errors import SettingsError
from muster_modelparallel.run.job_store import JobStore
from muster_modelparallel.run.launched_rank import LaunchedRank
from muster_modelparallel.run.pipeline.waits import Waits
from muster_modelparallel.shape.topology import GroupKind, Topology

_BOTH = "cpu:gloo,cuda:nccl"
_OWN = ("muster", "smddp")  # two names of one backend


@dataclass(frozen=True, slots=True)
class Mesh:
    """What this rank reaches the others by. `pipeline_back` is the group of messages that go back
    in a pipeline (run/pipeline/executor.py says why), `store` holds what ranks say of themselves
    while they wait, `objects_timeout_s` bounds each wait for an object, in seconds."""

    me: LaunchedRank
    device: torch.device
    backend: str
    store: Any
    objects_timeout_s: float
    groups: Mapping[GroupKind, Any]
    pipeline_back: Any
    object_groups: dict[GroupKind, Any]
    has_begun_world: bool
    waits: Waits = field(default_factory=Waits)  # for objects

    @property
    def rank(self) -> int:
        """Of all ranks."""
        return self.me.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.me.size

    @property
    def local_rank(self) -> int:
        """Among the ranks of this host."""
        return self.me.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks are on this host."""
        return self.me.local_size

    def group(self, kind: GroupKind) -> Any:
        """The process group of this kind that this rank is in, for tensors on `device`."""
        return self.groups[kind]

    def objects(self, kind: GroupKind) -> Any:
        """The same ranks over gloo, for tensors on the CPU that carry objects."""
        return self.object_groups[kind]

    def end_objects(self) -> None:
        """Ends the groups for objects, whose threads must not outlive Python: one that lets go of
        a collective's tensors just then aborts the process. Called at exit, too."""
        _end(self.object_groups.values())
        self.object_groups.clear()

    def close(self) -> None:
        """Ends the groups; the world's only where `make` has begun it."""
        self.end_objects()
        _end([*self.groups.values(), self.pipeline_back])
        if self.has_begun_world:
            with suppress(Exception):
                dist.destroy_process_group()


def make(point: JobStore, topology: Topology, wished: str, objects_timeout_s: float) -> Mesh:
    """All groups; every rank calls it. `wished`: auto or the name of a backend.

    Raises SettingsError for a backend that this machine does not have, and on all ranks where some
    share a GPU and the backend is NCCL.
    """
    me = point.me
    device = _device(me)
    has_begun = not dist.is_initialized()
    # of this making of the groups alone: a process may end them and begin anew
    life = int(point.store.add(f"life/{me.rank}", 1))
    store = dist.PrefixStore(f"life-{life}", point.store)
    backend = _backend(wished, device) if has_begun else str(dist.get_backend())
    if device.type == "cuda" and (backend in _OWN or "nccl" in backend):
        name = f"GPU {torch.cuda.get_device_properties(device).uuid}"
        require_own_gpus(point.exchange(name))
    if has_begun:
        dist.init_process_group(
            backend, store=dist.PrefixStore("world", store), rank=me.rank,
            world_size=me.size,
        )  # fmt: skip
    groups = _groups(
        topology, me.rank, has_begun, {tuple(range(me.size)): dist.group.WORLD}
    )  # fmt: skip
    back = groups[GroupKind.PP]
    if topology.pipeline > 1 and (device.type == "cuda" or backend not in ("gloo", *_OWN)):
        back = _groups(topology, me.rank, has_begun, {}, kinds=[GroupKind.PP])[GroupKind.PP]
    limit = timedelta(seconds=objects_timeout_s)
    objects = _groups(topology, me.rank, has_begun, {}, backend="gloo", timeout=limit)
    made = Mesh(
        me, device, backend, dist.PrefixStore("objects", store), objects_timeout_s, groups,
        back, objects, has_begun,
    )  # fmt: skip
    atexit.register(made.end_objects)
    return made


def _end(groups: Iterable[Any]) -> None:
    for group in dict.fromkeys(groups):
        if group is not dist.group.WORLD:
            with suppress(Exception):  # a peer may be gone; there is nothing left to say to it
                dist.destroy_process_group(group)


def _groups(
    topology: Topology,
    rank: int,
    has_begun: bool,
    made: dict[Sequence[int], Any],
    kinds: Iterable[GroupKind] = GroupKind,
    **options: Any,
) -> dict[GroupKind, Any]:
    """By kind. Kinds with the same ranks share a group; `made` are those that there are already.

    Where the world is ours all ranks have made the same number of groups, so each rank makes only
    those it is in; else the script may have made some on a few ranks, and all take part in all.
    """
    found: dict[GroupKind, Any] = {}
    for kind in kinds:
        sets = [tuple(each) for each in topology.all_groups(kind)]
        mine = next(each for each in sets if rank in each)
        if mine not in made:
            for ranks in [mine] if has_begun else sets:
                group = dist.new_group(list(ranks), use_local_synchronization=has_begun, **options)
                if ranks == mine:
                    made[mine] = group
        found[kind] = made[mine]
    return found


def _device(me: LaunchedRank) -> torch.device:
    """The rank's GPU where the host has some, which becomes torch's current one; else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", me.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def require_own_gpus(names: Sequence[str]) -> None:
    """`names[rank]` is that of the rank's GPU. Raises SettingsError where two ranks have one: NCCL
    would refuse them with the first tensor, in words of its own."""
    for rank, name in enumerate(names):
        if names.index(name) < rank:
            raise SettingsError(
                f"ranks {names.index(name)} and {rank} are both on {name}, which NCCL refuses",
                "start no more ranks on a host than it has GPUs, or set CUDA_VISIBLE_DEVICES= to "
                "train on its processors",
            )


def _backend(wished: str, device: torch.device) -> str:
    has_cuda = device.type == "cuda"
    if wished in ("auto", *_OWN):
        with suppress(ImportError):
            importlib.import_module("muster_collectives.torch")
            return "muster"
        if wished != "auto":
            raise SettingsError(
                f"ddp_dist_backend is {wished!r}, and muster_collectives cannot be imported",
                "install muster-parallel, or set ddp_dist_backend to 'auto'",
            )
    if wished == "nccl" and not has_cuda:
        raise SettingsError(
            "ddp_dist_backend is 'nccl', and torch sees no CUDA device",
            "set ddp_dist_backend to 'auto' or 'gloo'",
        )
    return _BOTH if has_cuda else "gloo"
