"""Collectives in two levels, composed of those of inner groups, with legs that overlap.

An inner call's `wait` orders the stream it is issued on after the call; the host goes on. On
processors it stands still, so the same compositions run there, leg by leg. Collectives of one group
are issued in the same order by all its ranks, whichever lane they are in.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muster_collectives.runtime.types import Op
from muster_collectives.torch.compress import exchange, group_calls
from muster_collectives.torch.compress.exchange import WireFormat
from muster_collectives.torch.cuda.groups import Factors, InnerGroups, factors_of
from muster_collectives.torch.cuda.streams import SideStreams
from muster_collectives.torch.ops.lowered import op_of, reducible

SUM: Any = dist.ReduceOp.SUM


def is_sum(op: Any) -> bool:
    """A sum or an average. (`in` would say no to a ReduceOp object: the enum compares first.)"""
    return bool(op == SUM or op == dist.ReduceOp.AVG)  # noqa: PLR1714


def is_of_levels(tensor: Tensor, op: Any) -> bool:
    """Whether a reduction of reductions is the reduction. Not so where each level would do
    something of its own to its inputs: PREMUL_SUM would multiply twice.

    An average is a sum, then a division by the ranks of all nodes, for types that torch divides:
    that of integers, which NCCL can do, is left to the world.
    """
    which = op_of(op)
    return which is not None and (which is not Op.AVG or reducible(tensor.dtype, which) is not None)


def all_reduce(
    groups: InnerGroups, side_streams: SideStreams, tensor: Tensor, op: Any, segment_bytes: int,
    wire: WireFormat | None = None,
) -> None:  # fmt: skip
    """In place, contiguous. Each segment: reduce-scatter in the node, all-reduce on the rail,
    all-gather in the node; the rail's leg of one overlaps the node's legs of its neighbours.

    `wire` is for float32 sums alone.
    """
    layout, intra = groups.layout, groups.intra
    average = op == dist.ReduceOp.AVG
    inner_op = SUM if average else op
    factors = factors_of(layout, tensor.dtype, average, wire is not None)
    flat = tensor.view(-1)
    previous: tuple[Tensor, Tensor, Tensor] | None = None
    begin = 0
    for shard_count in shard_counts(tensor, layout.locals, segment_bytes):
        piece = flat[begin : begin + shard_count * layout.locals]
        with side_streams.near.on():
            if factors.node != 1.0:
                piece.mul_(factors.node)
            whole = _padded(piece, shard_count * layout.locals)
            shard = torch.empty(shard_count, dtype=tensor.dtype, device=tensor.device)
            group_calls.reduce_scatter(intra, shard, whole, inner_op).wait()
        if previous is not None:
            _gather_back(groups, side_streams, *previous)
        side_streams.far.follow(side_streams.near)
        with side_streams.far.on():
            _over_rail(groups, shard, inner_op, factors, wire)
        previous = (piece, whole, shard)
        # the rail reads it in a lane other than the one that has its memory
        side_streams.far.uses((shard,))
        begin += shard_count * layout.locals
    if previous is not None:
        _gather_back(groups, side_streams, *previous)


def shard_counts(tensor: Tensor, ranks: int, segment_bytes: int) -> list[int]:
    """Values of each segment's shard: `ranks` shards hold a segment, all segments the tensor."""
    per_segment = max(1, segment_bytes // tensor.element_size() // ranks) * ranks
    begins = range(0, tensor.numel(), per_segment)
    return [-(-min(tensor.numel() - begin, per_segment) // ranks) for begin in begins]


def all_gather(
    groups: InnerGroups, side_streams: SideStreams, output: Tensor, source: Tensor
) -> None:
    """The rails bring one node's pieces after the other; as each lands, its node's part of the
    output is gathered in the node while the next is on its way."""
    layout, intra, inter = groups.layout, groups.intra, groups.inter
    flat = source.view(-1)
    direct = layout.node_major
    with side_streams.near.on():
        whole = output.view(-1) if direct else torch.empty_like(output.view(-1))
        parts = whole.view(layout.nodes, -1)
        group_calls.all_gather(intra, parts[layout.node], flat).wait()  # needs no rail
    for node in range(layout.nodes):
        with side_streams.far.on():
            piece = flat if node == layout.node else torch.empty_like(flat)
            group_calls.broadcast(inter, piece, node).wait()
        if node == layout.node:
            continue
        side_streams.near.follow(side_streams.far)
        side_streams.near.uses((piece,))
        with side_streams.near.on():
            group_calls.all_gather(intra, parts[node], piece).wait()
    if not direct:
        with side_streams.near.on():
            order = torch.tensor(layout.by_node, device=output.device)
            output.view(layout.size, -1).index_copy_(0, order, whole.view(layout.size, -1))


def reduce_scatter(
    groups: InnerGroups,
    side_streams: SideStreams,
    output: Tensor,
    source: Tensor,
    op: Any,
    wire: WireFormat | None,
) -> None:
    """One reduce-scatter in the node for each node, then one on the rail over what they gave."""
    layout, intra, inter = groups.layout, groups.intra, groups.inter
    average = op == dist.ReduceOp.AVG
    inner_op = SUM if average else op
    wired = wire is not None and is_sum(op)
    factors = factors_of(layout, source.dtype, average, wired)
    with side_streams.near.on():
        parts = source.view(layout.size, -1)
        if factors.node != 1.0:
            parts = parts * factors.node  # the caller keeps the source
        if not layout.node_major:
            parts = parts[torch.tensor(layout.by_node, device=source.device)]
        parts = parts.view(layout.nodes, -1)
        sums = torch.empty(layout.nodes, output.numel(), dtype=source.dtype, device=source.device)
        for node in range(layout.nodes):
            group_calls.reduce_scatter(intra, sums[node], parts[node], inner_op).wait()
    side_streams.far.follow(side_streams.near)
    side_streams.far.uses((sums,))
    with side_streams.far.on():
        if factors.rail != 1.0:
            sums.mul_(factors.rail)
        if wire is not None and wired:
            exchange.reduce_scatter_over(inter, sums, output.view(-1), wire)
        else:
            flat = output.view(-1)
            group_calls.reduce_scatter(inter, flat, sums.view(-1), inner_op).wait()
        if factors.divisor != 1.0:
            output.div_(factors.divisor)


def _over_rail(
    groups: InnerGroups, shard: Tensor, op: Any, factors: Factors, wire: WireFormat | None
) -> None:
    layout = groups.layout
    if factors.rail != 1.0:
        shard.mul_(factors.rail)
    if wire is None:
        group_calls.all_reduce(groups.inter, shard, op).wait()
        if factors.divisor != 1.0:
            shard.div_(factors.divisor)
    else:
        scale = 1.0 / factors.divisor
        exchange.sum_over(groups.inter, layout.node, layout.nodes, shard, wire, scale=scale)


def _gather_back(
    groups: InnerGroups, side_streams: SideStreams, piece: Tensor, whole: Tensor, shard: Tensor
) -> None:
    side_streams.out.follow(side_streams.far)
    side_streams.out.uses((whole, shard))
    with side_streams.out.on():
        group_calls.all_gather(groups.intra, whole, shard).wait()
        if whole.data_ptr() != piece.data_ptr():
            piece.copy_(whole[: piece.numel()])


def _padded(piece: Tensor, count: int) -> Tensor:
    if piece.numel() == count:
        return piece
    whole = torch.zeros(count, dtype=piece.dtype, device=piece.device)
    whole[: piece.numel()] = piece
    return whole
