"""What each rank gets when all ranks' calls are there (pure)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from muster_collectives.pure.math import reduce_bytes
from muster_collectives.runtime.types import DTYPE_BYTES, REDUCING, Description, Verb

Bytes = memoryview


class UnevenError(Exception):
    """What one rank sends is not what another expects; the ranks of the two."""

    def __init__(self, sender: int, receiver: int) -> None:
        super().__init__(f"rank {sender} and rank {receiver}")
        self.sender = sender
        self.receiver = receiver


def results(what: Description, given: Sequence[Bytes], is_uneven: bool) -> list[Sequence[Bytes]]:
    """The pieces of each rank's result, in order. Raises UnevenError, ValueError (a length)."""
    part = what.count * DTYPE_BYTES[what.dtype]
    if is_uneven:
        return _uneven(what, given)
    _require(what, given, part)
    return _reduced(what, given, part) if what.verb in REDUCING else _moved(what, given, part)


def _reduced(what: Description, given: Sequence[Bytes], part: int) -> list[Sequence[Bytes]]:
    everyone = range(len(given))
    total = memoryview(reduce_bytes(given, what.dtype, what.op, len(given)))
    if what.verb is Verb.REDUCE_SCATTER:
        return [[total[rank * part : (rank + 1) * part]] for rank in everyone]
    takers = everyone if what.verb is Verb.ALL_REDUCE else (what.root,)
    return [[total] if rank in takers else [] for rank in everyone]


def _moved(what: Description, given: Sequence[Bytes], part: int) -> list[Sequence[Bytes]]:
    everyone = range(len(given))
    root = given[what.root]
    if what.verb is Verb.BROADCAST:
        return [[] if rank == what.root else [root] for rank in everyone]
    if what.verb is Verb.ALL_GATHER:
        return [list(given) for _ in everyone]
    if what.verb is Verb.GATHER:
        return [list(given) if rank == what.root else [] for rank in everyone]
    if what.verb is Verb.SCATTER:
        return [[root[rank * part : (rank + 1) * part]] for rank in everyone]
    if what.verb is Verb.ALL_TO_ALL:
        return [[each[rank * part : (rank + 1) * part] for each in given] for rank in everyone]
    return [[] for _ in everyone]


def sent_bytes(what: Description, rank: int, size: int) -> int:
    """How much `rank` gives to the hub for a call with equal parts."""
    part = what.count * DTYPE_BYTES[what.dtype]
    if what.verb in (Verb.REDUCE_SCATTER, Verb.ALL_TO_ALL):
        return part * size
    if what.verb is Verb.SCATTER:
        return part * size if rank == what.root else 0
    if what.verb is Verb.BROADCAST:
        return part if rank == what.root else 0
    return 0 if what.verb is Verb.BARRIER else part


def counts_head(in_counts: Sequence[int], out_counts: Sequence[int]) -> bytes:
    return struct.pack(f"!{2 * len(in_counts)}Q", *in_counts, *out_counts)


def _require(what: Description, given: Sequence[Bytes], part: int) -> None:
    for rank, data in enumerate(given):
        due = sent_bytes(what, rank, len(given))
        if data.nbytes != due:
            raise ValueError(f"rank {rank} sent {data.nbytes} bytes, {due} are due")


def _uneven(what: Description, given: Sequence[Bytes]) -> list[Sequence[Bytes]]:
    size = len(given)
    head = struct.Struct(f"!{2 * size}Q")
    ins, outs, rows = [], [], []
    for data in given:
        counts = head.unpack_from(data)
        ins.append(counts[:size])
        outs.append(counts[size:])
        rows.append(data[head.size :])
    for sender in range(size):
        for receiver in range(size):
            if ins[sender][receiver] != outs[receiver][sender]:
                raise UnevenError(sender, receiver)
    width = DTYPE_BYTES[what.dtype]
    found: list[list[Bytes]] = [[] for _ in range(size)]
    for sender in range(size):
        begin = 0
        for receiver in range(size):
            end = begin + ins[sender][receiver] * width
            found[receiver].append(rows[sender][begin:end])
            begin = end
        if begin != rows[sender].nbytes:
            raise ValueError(f"rank {sender} sent {rows[sender].nbytes} bytes, {begin} are due")
    return list(found)
