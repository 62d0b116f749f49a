"""Which rank holds which part of the model: ranks on a mesh with three axes, as pure arithmetic.

P: pipeline stages, T: slices of tensors, D: replicas ("reduced" data parallelism). The placement
names the axes from the slowest to the fastest: with `DPT` neighbouring ranks are slices of one
stage, with `TPD` they are replicas of one another. Source: the public documentation, "Ranking
Basics" and "Placement Strategy with Tensor Parallelism".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class GroupKind(str, Enum):
    """The kinds of groups. A rank is in one group of each kind.

    WORLD: all ranks. MP: those that hold one replica together. DP: those of the same stage. PP, TP,
    RDP: those that differ along one axis only.
    """

    WORLD = "world"
    MP = "mp"
    DP = "dp"
    PP = "pp"
    TP = "tp"
    RDP = "rdp"


class Place(NamedTuple):
    """Where a rank is: which stage, which slice of its tensors, which replica."""

    pp: int
    tp: int
    rdp: int


# what the ranks of a group have in common
_SAME: dict[GroupKind, Callable[[Place], tuple[int, ...]]] = {
    GroupKind.WORLD: lambda place: (),
    GroupKind.MP: lambda place: (place.rdp,),
    GroupKind.DP: lambda place: (place.pp,),
    GroupKind.PP: lambda place: (place.tp, place.rdp),
    GroupKind.TP: lambda place: (place.pp, place.rdp),
    GroupKind.RDP: lambda place: (place.pp, place.tp),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """`size` ranks, of which `pipeline` x `tensor` hold one replica of the model.

    mp_size x rdp_size = pipeline x dp_size = pipeline x tensor x rdp_size = size. Raises ValueError
    for degrees that do not divide the ranks and for a placement that is no permutation of D, P, T;
    methods raise IndexError for a rank or a place that does not exist. Groups are in ascending
    order of ranks, as torch.distributed orders them; along one axis that is the order of its
    coordinate.
    """

    size: int
    pipeline: int = 1
    tensor: int = 1
    placement: str = "DPT"

    def __post_init__(self) -> None:
        if min(self.size, self.pipeline, self.tensor) < 1 or self.size % self.mp_size:
            what = f"pipeline {self.pipeline} x tensor {self.tensor}"
            raise ValueError(f"{what} does not divide {self.size} ranks")
        if sorted(self.placement) != ["D", "P", "T"]:
            raise ValueError(f"{self.placement!r} is no permutation of D, P and T")

    @property
    def mp_size(self) -> int:
        """Ranks that hold one replica."""
        return self.pipeline * self.tensor

    @property
    def rdp_size(self) -> int:
        """Replicas of the model."""
        return self.size // self.mp_size

    @property
    def dp_size(self) -> int:
        """Ranks of a stage: its slices in all replicas."""
        return self.size // self.pipeline

    def place(self, rank: int) -> Place:
        """Where the rank is."""
        if not 0 <= rank < self.size:
            raise IndexError(f"rank {rank} is none of {self.size}")
        at = {letter: rank // stride % length for letter, length, stride in self._axes()}
        return Place(at["P"], at["T"], at["D"])

    def rank_of(self, place: Place) -> int:
        """The rank that is there; the inverse of `place`."""
        at = {"P": place.pp, "T": place.tp, "D": place.rdp}
        axes = self._axes()
        if not all(0 <= at[letter] < length for letter, length, _ in axes):
            raise IndexError(f"{place} is outside {self}")
        return sum(at[letter] * stride for letter, _, stride in axes)

    def group(self, kind: GroupKind, rank: int) -> tuple[int, ...]:
        """The ranks of the rank's group of that kind, itself among them."""
        same = _SAME[kind]
        mine = same(self.place(rank))
        return tuple(one for one in range(self.size) if same(self.place(one)) == mine)

    def all_groups(self, kind: GroupKind) -> tuple[tuple[int, ...], ...]:
        """All groups of that kind, in the order of their first ranks: each rank is in one of them.
        Every rank must make all of them, in this order, with torch.distributed.new_group."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            found.setdefault(_SAME[kind](self.place(rank)), []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    def pp_group(self, rank: int) -> tuple[int, ...]:
        return self.group(GroupKind.PP, rank)

    def tp_group(self, rank: int) -> tuple[int, ...]:
        return self.group(GroupKind.TP, rank)

    def rdp_group(self, rank: int) -> tuple[int, ...]:
        return self.group(GroupKind.RDP, rank)

    def mp_group(self, rank: int) -> tuple[int, ...]:
        return self.group(GroupKind.MP, rank)

    def dp_group(self, rank: int) -> tuple[int, ...]:
        return self.group(GroupKind.DP, rank)

    def pp_rank(self, rank: int) -> int:
        return self.place(rank).pp

    def tp_rank(self, rank: int) -> int:
        return self.place(rank).tp

    def rdp_rank(self, rank: int) -> int:
        return self.place(rank).rdp

    def mp_rank(self, rank: int) -> int:
        return self.mp_group(rank).index(rank)

    def dp_rank(self, rank: int) -> int:
        return self.dp_group(rank).index(rank)

    def _axes(self) -> tuple[tuple[str, int, int], ...]:
        """(letter, how many, distance of neighbouring ranks) of each axis, the fastest first."""
        lengths = {"P": self.pipeline, "T": self.tensor, "D": self.rdp_size}
        axes, stride = [], 1
        for letter in reversed(self.placement):
            axes.append((letter, lengths[letter], stride))
            stride *= lengths[letter]
        return tuple(axes)
