"""Which rank holds which part of the model: ranks on a mesh with three axes, as pure arithmetic.

P: pipeline stages, T: slices of tensors, D: replicas ("reduced" data parallelism). The placement
names the axes from the slowest to the fastest: with `DPT` neighbouring ranks are slices of one
stage, with `TPD` they are replicas of one another. Source: the public documentation, "Ranking
Basics" and "Placement Strategy with Tensor Parallelism".
"""

from __future__ import annotations

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


# the axes along which the ranks of a group differ
_AXES = {
    GroupKind.WORLD: "DPT",
    GroupKind.MP: "PT",
    GroupKind.DP: "DT",
    GroupKind.PP: "P",
    GroupKind.TP: "T",
    GroupKind.RDP: "D",
}


class _Axis(NamedTuple):
    """`stride`: how far apart the ranks are that are neighbours along it."""

    letter: str
    length: int
    stride: int

    def at(self, rank: int) -> int:
        return rank // self.stride % self.length


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
        self._check(rank)
        at = {axis.letter: axis.at(rank) for axis in self._axes("DPT")}
        return Place(at["P"], at["T"], at["D"])

    def rank_of(self, place: Place) -> int:
        """The rank that is there; the inverse of `place`."""
        at = {"P": place.pp, "T": place.tp, "D": place.rdp}
        axes = self._axes("DPT")
        if not all(0 <= at[axis.letter] < axis.length for axis in axes):
            raise IndexError(f"{place} is outside {self}")
        return sum(at[axis.letter] * axis.stride for axis in axes)

    def group(self, kind: GroupKind, rank: int) -> tuple[int, ...]:
        """The ranks of the rank's group of that kind, itself among them."""
        self._check(rank)
        axes = self._axes(_AXES[kind])
        ranks = [rank - sum(axis.at(rank) * axis.stride for axis in axes)]
        for _, length, stride in axes:
            ranks = [one + at * stride for one in ranks for at in range(length)]
        return tuple(ranks)

    def group_rank(self, kind: GroupKind, rank: int) -> int:
        """The index of the rank in its group of that kind."""
        self._check(rank)
        index = 0
        for axis in self._axes(_AXES[kind]):
            index = index * axis.length + axis.at(rank)
        return index

    def all_groups(self, kind: GroupKind) -> tuple[tuple[int, ...], ...]:
        """All groups of that kind, in the order of their first ranks: each rank is in one of them.
        Every rank must make all of them, in this order, with torch.distributed.new_group."""
        firsts = (rank for rank in range(self.size) if not self.group_rank(kind, rank))
        return tuple(self.group(kind, first) for first in firsts)

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
        return self.group_rank(GroupKind.PP, rank)

    def tp_rank(self, rank: int) -> int:
        return self.group_rank(GroupKind.TP, rank)

    def rdp_rank(self, rank: int) -> int:
        return self.group_rank(GroupKind.RDP, rank)

    def mp_rank(self, rank: int) -> int:
        return self.group_rank(GroupKind.MP, rank)

    def dp_rank(self, rank: int) -> int:
        return self.group_rank(GroupKind.DP, rank)

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise IndexError(f"rank {rank} is none of {self.size}")

    def _axes(self, letters: str) -> tuple[_Axis, ...]:
        """Those of `letters`, the slowest first."""
        lengths = {"P": self.pipeline, "T": self.tensor, "D": self.rdp_size}
        axes, stride = [], 1
        for letter in reversed(self.placement):
            if letter in letters:
                axes.append(_Axis(letter, lengths[letter], stride))
            stride *= lengths[letter]
        return tuple(reversed(axes))
