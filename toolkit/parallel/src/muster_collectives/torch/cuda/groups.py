"""The inner groups of the device path: the world, this node's ranks, and one rank of every node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster_collectives.torch.compress.group_calls import Group
from muster_collectives.torch.cuda.layout import NodeLayout

# From a store of its own, a rank and a size to a process group of those
Make = Callable[[Any, int, int], Group]


@dataclass(frozen=True)
class InnerGroups:
    """The NCCL groups of a device path. `intra` and `inter` are there where the layout has two
    levels.

    `intra`: the ranks of this node, numbered by place. `inter`: those of this place in each node,
    numbered by node: with a network adapter for each GPU, a rail."""

    layout: NodeLayout
    world: Group
    intra: Group | None = None
    inter: Group | None = None

    @property
    def levels(self) -> tuple[Group, Group] | None:
        """(intra, inter), or None where there is one level alone."""
        if self.intra is None or self.inter is None:
            return None
        return self.intra, self.inter


def make_groups(store: Any, layout: NodeLayout, make: Make) -> InnerGroups:
    """Collective: all ranks call it with the same store and layouts of the same nodes."""
    world = make(dist.PrefixStore("world", store), layout.rank, layout.size)
    if not layout.two_level:
        return InnerGroups(layout, world)
    node, rail = f"node{layout.node}", f"rail{layout.local}"
    return InnerGroups(
        layout,
        world,
        make(dist.PrefixStore(node, store), layout.local, layout.locals),
        make(dist.PrefixStore(rail, store), layout.node, layout.nodes),
    )


def nccl(timeout_s: float) -> Make:
    """Makes NCCL groups. Raises RuntimeError where torch was built without NCCL."""
    backend = getattr(dist, "ProcessGroupNCCL", None)
    if backend is None:
        raise RuntimeError("this torch has no NCCL: CUDA tensors need a CUDA build of torch")

    def make(store: Any, rank: int, size: int) -> Group:
        options = backend.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return backend(store, rank, size, options)

    return make
