"""The inner groups of the device path: the world, this node's ranks, and one rank of every node.

Which ranks share a node, in which groups a two-level collective runs, and by which factors its
averages stay within the range of a narrow type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from muster_collectives.torch.compress.group_calls import Group


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Which ranks share a node. `members[n]` are the ranks of node n, ascending; nodes by first
    appearance in rank order.

    This rank is number `local` of node `node`."""

    rank: int
    members: tuple[tuple[int, ...], ...]
    node: int
    local: int

    @property
    def size(self) -> int:
        return sum(len(node) for node in self.members)

    @property
    def nodes(self) -> int:
        return len(self.members)

    @property
    def locals(self) -> int:
        """Ranks of this node."""
        return len(self.members[self.node])

    @property
    def two_level(self) -> bool:
        """Several nodes of the same number of ranks, several ranks each: two levels exist."""
        counts = {len(node) for node in self.members}
        return self.nodes > 1 and len(counts) == 1 and self.locals > 1

    @property
    def node_major(self) -> bool:
        """Ranks in the order of nodes are 0, 1, 2 ..."""
        return self.by_node == tuple(range(self.size))

    @property
    def by_node(self) -> tuple[int, ...]:
        """All ranks, node by node."""
        return tuple(rank for node in self.members for rank in node)


def plan_layout(rank: int, node_of: Sequence[int]) -> NodeLayout:
    """`node_of[r]` names rank r's node. Raises ValueError if `rank` is not one of them."""
    if not 0 <= rank < len(node_of):
        raise ValueError(f"rank {rank} is none of {len(node_of)} ranks")
    names = list(dict.fromkeys(node_of))
    members = tuple(
        tuple(each for each, name in enumerate(node_of) if name == node) for node in names
    )
    node = names.index(node_of[rank])
    return NodeLayout(rank, members, node, members[node].index(rank))


class Factors(NamedTuple):
    """The factors of an average in two levels, so that its sums stay within a narrow type.

    float16 ends at 65504, which the sum of many ranks passes long before their average does. So
    what is summed is scaled before each level, by powers of two: those change no digit of a value,
    only its exponent, so that a result that was right without them keeps its bits. Each level
    scales for its own ranks alone: values that fall below the normal range (6e-5) lose half a unit
    of 6e-8 there for each rank of the node and each node, where scaling for all ranks at once would
    lose it for each rank.

    Each rank's values times `node` are summed in the node, those sums times `rail` between the
    nodes, and what comes out of that is divided by `divisor`."""

    node: float
    rail: float
    divisor: float


def factors_of(layout: NodeLayout, dtype: torch.dtype, average: bool, wired: bool) -> Factors:
    """Of a sum (nothing to do) or an average of two levels. `wired`: sums of the nodes travel in a
    narrower form than `dtype`, though they are made in it."""
    if not average:
        return Factors(1.0, 1.0, 1.0)
    node = rail = 1.0
    if dtype == torch.float16:
        node, rail = _power_below(layout.locals), _power_below(layout.nodes)
    elif wired:
        # the exchange sums in float32 and divides before it packs
        rail = _power_below(layout.locals)
    return Factors(node, rail, layout.size * node * rail)


def _power_below(count: int) -> float:
    """The largest power of two that is not above 1 / count."""
    return 0.5 ** (count - 1).bit_length()


# From a store of its own, a rank and a size to a process group of those
Make = Callable[[Any, int, int], Group]


@dataclass(frozen=True)
class InnerGroups:
    """The NCCL groups of a device path. `intra` and `inter` are there, both, where the layout has
    two levels.

    `intra`: the ranks of this node, numbered by place. `inter`: those of this place in each node,
    numbered by node: with a network adapter for each GPU, a rail."""

    layout: NodeLayout
    world: Group
    intra: Group | None = None
    inter: Group | None = None


def make_groups(
    store: Any, layout: NodeLayout, make: Make, world: Group | None = None
) -> InnerGroups:
    """Collective: all ranks call it with the same store and layouts of the same nodes. `world`: the
    one that is there already."""
    if world is None:
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
