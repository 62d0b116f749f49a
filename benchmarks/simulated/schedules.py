"""The messages of an all-reduce between nodes, step by step.

`ours` follows csrc/inter of the core, with its constants: a test compares what a rank sends with
what it counts in a real group. `ring` and `doubling` are schedules that others use, in the same
frame: the node sums its ranks, each local rank carries its part to its peers, the node hands out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from muster_collectives.core import Tuning

SEGMENT_BYTES = Tuning().segment_bytes

CORE = Path(__file__).resolve().parents[2] / "toolkit" / "parallel" / "csrc"
FRAME_BYTES = 64  # the header of each message, struct mc_frame
ELEMENT_BYTES = 4  # float32


def constant(name: str) -> int:
    """A number that the core's sources define, as `32768u` or `(1u << 20)`. Raises ValueError."""
    for path in sorted((CORE / "inter").glob("*.[ch]")):
        found = re.search(rf"^#define {name} \(?(\d+)u?(?: << (\d+)\))?", path.read_text(), re.M)
        if found:
            return int(found[1]) << int(found[2] or 0)
    raise ValueError(f"no #define {name} in {CORE / 'inter'}")


class Shape(NamedTuple):
    """Nodes, and the ranks of each; the tuning's sizes in bytes."""

    nodes: int
    locals: int = 1
    leader_bytes: int = 256 << 10
    segment_bytes: int = SEGMENT_BYTES


class Post(NamedTuple):
    """Every node's message to the one that is `distance` further: sizes[i] bytes from node i,
    in `frames[i]` of them."""

    distance: int
    sizes: tuple[int, ...]
    frames: tuple[int, ...]


class Step(NamedTuple):
    """What is posted at once, and how many bytes the receiver sums when all of it has come."""

    posts: tuple[Post, ...]
    summed: tuple[int, ...]


class Schedule(NamedTuple):
    """The pieces of a call, each with its steps; `rails` ranks of each node do the same at the same
    time; up to `flight` pieces are under way at once."""

    rails: int
    pieces: tuple[tuple[Step, ...], ...]
    piece_bytes: tuple[int, ...]
    flight: int = 1

    def sent_bytes(self, node: int) -> int:
        """By all ranks of a node, frames included."""
        return self.rails * sum(
            post.sizes[node] + post.frames[node] * FRAME_BYTES
            for steps in self.pieces for step in steps for post in step.posts
        )  # fmt: skip

    def messages(self, node: int) -> int:
        """By one rank of a node."""
        return sum(p.frames[node] for steps in self.pieces for step in steps for p in step.posts)


def part(count: int, parts: int, which: int) -> tuple[int, int]:
    """Begin and length of a part, in elements: mc_part."""
    grain = 64 // ELEMENT_BYTES
    each = (count // parts + grain - 1) // grain * grain
    begin = min(which * each, count)
    end = count if which + 1 == parts else min(begin + each, count)
    return begin, end - begin


def ours(shape: Shape, size_bytes: int) -> Schedule:
    """The core's float32 sum over all nodes; `size_bytes` are those of each rank."""
    nodes = shape.nodes
    one_phase, least = constant("ONE_PHASE_BYTES"), constant("LEAST_MESSAGE")
    many = nodes > constant("ROUNDS_NODES") or (
        nodes > constant("MC_MESH_NODES") and size_bytes <= constant("ROUNDS_SUM_BYTES")
    )
    radix = constant("MC_RADIX")
    rail = _rounds if many else _mesh
    if size_bytes <= shape.leader_bytes:
        whole = size_bytes * (nodes - 2) <= one_phase
        steps = _exchange(nodes, size_bytes) if whole else rail(nodes, size_bytes)
        return Schedule(1, (steps,), (size_bytes,))
    # the least piece: of a mesh, so that its messages are no smaller; they grow with the rounds
    messages = (radix - 1) * rounds_of(nodes, radix) if many else nodes
    floor = min(least * shape.locals * messages, 8 * shape.segment_bytes)
    piece = max(min(shape.segment_bytes, size_bytes // 4), floor)
    piece = min((piece + 63) // 64 * 64, size_bytes)
    sizes = [min(piece, size_bytes - at) for at in range(0, size_bytes, piece)]
    made = {
        size: rail(nodes, part(size // ELEMENT_BYTES, shape.locals, 0)[1] * ELEMENT_BYTES)
        for size in set(sizes)
    }
    flight = constant("MC_INTER_SLOTS")
    return Schedule(shape.locals, tuple(made[size] for size in sizes), tuple(sizes), flight)


def ring(shape: Shape, size_bytes: int) -> Schedule:
    """2 (M - 1) steps to the next node, each with a part of 1 / M."""
    nodes = shape.nodes
    sizes = (size_bytes // shape.locals // nodes,) * nodes
    post = (Post(1, sizes, (1,) * nodes),)
    steps = (Step(post, sizes),) * (nodes - 1) + (Step(post, (0,) * nodes),) * (nodes - 1)
    return Schedule(shape.locals, (steps,), (size_bytes,))


def doubling(shape: Shape, size_bytes: int) -> Schedule:
    """log2(M) steps, each with everything; M a power of two."""
    nodes = shape.nodes
    sizes = (size_bytes // shape.locals,) * nodes
    steps = tuple(
        Step((Post(1 << turn, sizes, (1,) * nodes),), sizes) for turn in range(rounds_of(nodes, 2))
    )
    return Schedule(shape.locals, (steps,), (size_bytes,))


def rounds_of(nodes: int, radix: int) -> int:
    """How often a block is passed on until all nodes have it."""
    return len(_haves(nodes, radix))


def _haves(nodes: int, radix: int) -> list[int]:
    """The blocks that each node has before every round."""
    haves = [1]
    while haves[-1] * radix < nodes:
        haves.append(haves[-1] * radix)
    return haves


def _mesh(nodes: int, size_bytes: int) -> tuple[Step, ...]:
    sizes = _sizes(nodes, size_bytes)
    away = range(1, nodes)
    scattered = [_post(d, tuple(sizes[(i + d) % nodes] for i in range(nodes))) for d in away]
    gathered = [_post(d, tuple(sizes)) for d in away]
    summed = tuple(size * nodes for size in sizes)
    return (Step(tuple(scattered), summed), Step(tuple(gathered), (0,) * nodes))


def _rounds(nodes: int, size_bytes: int) -> tuple[Step, ...]:
    sizes, radix = _sizes(nodes, size_bytes), constant("MC_RADIX")
    down, up = [], []
    for have in _haves(nodes, radix):
        others = _others(nodes, have, radix)
        posts = tuple(_blocks(sizes, i * have, i * have, count) for i, count in others)
        comes = zip(*(_runs(sizes, 0, count)[0] for _, count in others), strict=True)
        down.append(Step(posts, tuple(map(sum, comes))))
        up.append(_round(sizes, have, radix))
    return (*reversed(down), *up)


def _exchange(nodes: int, block_bytes: int) -> tuple[Step, ...]:
    """Every node's block to all, which then sum them."""
    sizes = [block_bytes] * nodes
    many = nodes > constant("MC_MESH_NODES") and nodes * block_bytes <= constant("ROUNDS_BYTES")
    radix = constant("MC_RADIX") if many else nodes
    steps = [_round(sizes, have, radix) for have in _haves(nodes, radix)]
    return (*steps[:-1], steps[-1]._replace(summed=(block_bytes * nodes,) * nodes))


def _others(nodes: int, have: int, radix: int) -> list[tuple[int, int]]:
    """The place of each that a node hears from in a round, and how many blocks it gives."""
    return [(i, min(have, nodes - i * have)) for i in range(1, radix) if i * have < nodes]


def _round(sizes: Sequence[int], have: int, radix: int) -> Step:
    nodes = len(sizes)
    posts = [_blocks(sizes, nodes - i * have, 0, n) for i, n in _others(nodes, have, radix)]
    return Step(tuple(posts), (0,) * nodes)


def _sizes(nodes: int, size_bytes: int) -> list[int]:
    count = size_bytes // ELEMENT_BYTES
    return [part(count, nodes, which)[1] * ELEMENT_BYTES for which in range(nodes)]


def _post(distance: int, sizes: tuple[int, ...]) -> Post:
    return Post(distance, sizes, tuple(int(size > 0) for size in sizes))


def _blocks(sizes: Sequence[int], distance: int, first: int, count: int) -> Post:
    """The blocks from the `first` after each node's own, in two messages where they go round."""
    return Post(distance, *_runs(sizes, first, count))


def _runs(sizes: Sequence[int], first: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    nodes, borders = len(sizes), [0, *accumulate(sizes)]
    totals, frames = [], []
    for node in range(nodes):
        begin = (node + first) % nodes
        straight = borders[min(begin + count, nodes)] - borders[begin]
        rest = borders[max(begin + count - nodes, 0)]
        totals.append(straight + rest)
        frames.append((straight > 0) + (rest > 0))
    return tuple(totals), tuple(frames)
