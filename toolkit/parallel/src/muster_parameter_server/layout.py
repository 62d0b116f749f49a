"""Which server owns what (pure): all tensors as one line of bytes, cut into equal lengths.

Parts differ by less than one element, and one huge tensor is shared by all servers like any other.
A server's pieces of one dtype and group lie end to end in one flat tensor, its segment.
Source: Li et al. 2014 give ranges of keys to servers; the keys here are the elements' places.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from muster_parameter_server.wire.frames import DTYPES, Dtype


class TensorSpec(NamedTuple):
    """One tensor of the script. `group`: which parameter group's hyperparameters are its own.

    `label`: its name, or the end of a long one; empty where the script gave none.
    """

    dtype: str
    shape: tuple[int, ...]
    group: int = 0
    label: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].item_bytes

    @property
    def is_half(self) -> bool:
        return DTYPES[self.dtype].item_bytes == 2

    def __str__(self) -> str:
        named = f" named {self.label!r}" if self.label else ""
        return f"{self.dtype} {self.shape} of group {self.group}{named}"


class Piece(NamedTuple):
    """Elements `start` to `stop` of tensor number `tensor`, in row-major order."""

    tensor: int
    start: int
    stop: int


class Segment(NamedTuple):
    """One flat tensor of a server: its pieces end to end."""

    dtype: Dtype
    group: int
    pieces: tuple[Piece, ...]

    @property
    def is_half(self) -> bool:
        return self.dtype.item_bytes == 2

    @property
    def elements(self) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces)


def segments(tensors: Sequence[TensorSpec], servers: int) -> list[tuple[Segment, ...]]:
    """For each server the segments that it owns; together every element exactly once."""
    total = sum(tensor.size_bytes for tensor in tensors)
    cuts = [total * server // servers for server in range(servers + 1)]
    owned: list[dict[tuple[int, str], list[Piece]]] = [{} for _ in range(servers)]
    begin = server = 0
    for number, tensor in enumerate(tensors):
        item, start = DTYPES[tensor.dtype].item_bytes, 0
        while start < tensor.elements:
            while server < servers - 1 and cuts[server + 1] <= begin + start * item:
                server += 1
            # rounded up, so that a cut inside an element does not stop progress
            stop = min(tensor.elements, -(-(cuts[server + 1] - begin) // item))
            key = (tensor.group, tensor.dtype)
            owned[server].setdefault(key, []).append(Piece(number, start, stop))
            start = stop
        begin += tensor.size_bytes
    return [_of_server(pieces) for pieces in owned]


def _of_server(pieces: dict[tuple[int, str], list[Piece]]) -> tuple[Segment, ...]:
    return tuple(
        Segment(DTYPES[dtype], group, tuple(found))
        for (group, dtype), found in sorted(pieces.items())
    )
