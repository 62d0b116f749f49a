"""Which ranks share a node, and in which groups a two-level collective runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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

    @property
    def rail(self) -> tuple[int, ...]:
        """The ranks with this one's place in their nodes, by node; only where two_level."""
        return tuple(node[self.local] for node in self.members)


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
