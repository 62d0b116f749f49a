"""One rank's collectives, each beside its reference; outputs are folded into digests."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from muster_collectives.core import Communicator, DType, Op, Verb
from tests.collectives.core.reference import MEMORY, Array, Pool, meaning, pool, wrong

LIMIT_S = 60.0
GUARD = 8  # elements behind an output that must stay as they are
_FILL = 0x5A


class WrongError(AssertionError):
    """A result that is not what the reference says."""


def private(bytes_: int) -> Array:
    """Memory that nobody has registered."""
    return np.empty(bytes_, np.uint8)


class Room:
    """Memory for a result, with a guard behind it; `odd` begins it beside any alignment."""

    def __init__(
        self, dtype: DType, count: int, odd: bool, memory: Callable[[int], Array] = private
    ) -> None:
        kind = np.dtype(MEMORY[dtype])
        whole = memory((count + GUARD + 1) * kind.itemsize)
        whole[:] = _FILL
        self._whole = whole.view(kind)[int(odd) :]
        self.array: Array = self._whole[:count]

    @property
    def address(self) -> int:
        return int(self._whole.ctypes.data)

    def check_guard(self) -> None:
        behind = self._whole[len(self.array) : len(self.array) + GUARD - 1]
        if (behind.view(np.uint8) != _FILL).any():
            raise WrongError("a result was written beyond its end")


class Checker:
    """Runs and checks collectives of one group. All ranks call the same with the same `salt`."""

    def __init__(self, comm: Communicator, seed: int) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.calls = 0
        self.memory = private  # gives the bytes of every input and result
        self.same = 0  # of what all ranks must hold alike
        self.own = 0  # of all that this rank got
        self._seed = seed
        self._pools: dict[tuple[DType, bool], Pool] = {}
        self._roundings = len(set(comm.nodes))

    def all_reduce(self, dtype: DType, op: Op, count: int, salt: int) -> None:
        """Twice, beside the input and in its place: the same bits."""
        inputs = self._inputs(dtype, op, count, salt)
        given, out = (
            self._copy(dtype, inputs[self.rank].memory, salt),
            self._room(dtype, count, False),
        )
        self._run(Verb.ALL_REDUCE, given.address, out, count, dtype, op)
        self._check(Verb.ALL_REDUCE, dtype, op, out.array, inputs)
        self._keep(out.array, alike=True)
        self._run(Verb.ALL_REDUCE, given.address, given, count, dtype, op)
        if given.array.tobytes() != out.array.tobytes():
            raise WrongError(f"all_reduce in place: other bits ({dtype.name}, {op.name}, {count})")

    def reduce(self, dtype: DType, op: Op, count: int, salt: int) -> None:
        root = salt % self.size
        inputs = self._inputs(dtype, op, count, salt)
        given, out = (
            self._copy(dtype, inputs[self.rank].memory, salt),
            self._room(dtype, count, False),
        )
        before = out.array.copy()
        self._run(Verb.REDUCE, given.address, out, count, dtype, op, root)
        if self.rank == root:
            self._check(Verb.REDUCE, dtype, op, out.array, inputs)
            self._keep(out.array)
        elif out.array.tobytes() != before.tobytes():
            raise WrongError("reduce wrote the result of a rank that is not the root")
        if given.array.tobytes() != inputs[self.rank].memory.tobytes():
            raise WrongError("reduce wrote what it was given")

    def reduce_scatter(self, dtype: DType, op: Op, count: int, salt: int) -> None:
        inputs = self._inputs(dtype, op, count * self.size, salt)
        given, out = (
            self._copy(dtype, inputs[self.rank].memory, salt),
            self._room(dtype, count, True),
        )
        self._run(Verb.REDUCE_SCATTER, given.address, out, count, dtype, op)
        part = slice(self.rank * count, (self.rank + 1) * count)
        parts = [Pool(each.memory[part], each.value[part]) for each in inputs]
        self._check(Verb.REDUCE_SCATTER, dtype, op, out.array, parts)
        self._keep(out.array)

    def broadcast(self, dtype: DType, count: int, salt: int) -> None:
        inputs = self._inputs(dtype, Op.SUM, count, salt)
        root = salt % self.size
        data = self._copy(dtype, inputs[self.rank].memory, salt)
        self._run(Verb.BROADCAST, data.address, data, count, dtype, root=root)
        self._equal(Verb.BROADCAST, data.array, inputs[root].memory)
        self._keep(data.array, alike=True)

    def all_gather(self, dtype: DType, count: int, salt: int) -> None:
        """Odd salts have the input in its own place of the output."""
        inputs = self._inputs(dtype, Op.SUM, count, salt)
        out = self._room(dtype, count * self.size, False)
        blocks = self._blocks(out, count, salt)
        if salt % 2:
            own = self._in_order(out, count, blocks)[self.rank]
            own[:] = inputs[self.rank].memory
            source = own.ctypes.data
        else:
            given = self._copy(dtype, inputs[self.rank].memory, salt)
            source = given.address
        self._run(Verb.ALL_GATHER, source, out, count, dtype, blocks=blocks)
        found = np.concatenate(self._in_order(out, count, blocks))
        self._equal(Verb.ALL_GATHER, found, np.concatenate([i.memory for i in inputs]))
        self._keep(found, alike=True)

    def gather(self, dtype: DType, count: int, salt: int) -> None:
        root = salt % self.size
        inputs = self._inputs(dtype, Op.SUM, count, salt)
        given = self._copy(dtype, inputs[self.rank].memory, salt)
        out = self._room(dtype, count * self.size if self.rank == root else 0, True)
        blocks = self._blocks(out, count, salt) if self.rank == root else None
        self._run(Verb.GATHER, given.address, out, count, dtype, root=root, blocks=blocks)
        if self.rank == root:
            found = np.concatenate(self._in_order(out, count, blocks))
            self._equal(Verb.GATHER, found, np.concatenate([i.memory for i in inputs]))
            self._keep(found)

    def scatter(self, dtype: DType, count: int, salt: int) -> None:
        root = salt % self.size
        whole = self._inputs(dtype, Op.SUM, count * self.size, salt)[root].memory
        given = self._copy(dtype, whole if self.rank == root else whole[:0], salt)
        out = self._room(dtype, count, True)
        blocks = self._blocks(given, count, salt) if self.rank == root else None
        if blocks is not None:
            for part, of in enumerate(self._in_order(given, count, blocks)):
                of[:] = whole[part * count : (part + 1) * count]
        source = 0 if blocks else given.address
        self._run(Verb.SCATTER, source, out, count, dtype, root=root, blocks=blocks)
        self._equal(Verb.SCATTER, out.array, whole[self.rank * count : (self.rank + 1) * count])
        self._keep(out.array)

    def all_to_all(self, dtype: DType, count: int, salt: int) -> None:
        """Twice, beside the input and in its place."""
        inputs = self._inputs(dtype, Op.SUM, count * self.size, salt)
        given = self._copy(dtype, inputs[self.rank].memory, salt)
        out = self._room(dtype, count * self.size, True)
        self._run(Verb.ALL_TO_ALL, given.address, out, count, dtype)
        mine = slice(self.rank * count, (self.rank + 1) * count)
        self._equal(Verb.ALL_TO_ALL, out.array, np.concatenate([i.memory[mine] for i in inputs]))
        self._keep(out.array)
        self._run(Verb.ALL_TO_ALL, given.address, given, count, dtype)
        self._equal(Verb.ALL_TO_ALL, given.array, out.array)

    def all_to_all_uneven(self, dtype: DType, count: int, salt: int) -> None:
        """Part (i, j) has (i * 3 + j * 5 + salt) mod (count + 1) elements: some have none."""

        def part(source: int, target: int) -> int:
            return (source * 3 + target * 5 + salt) % (count + 1)

        everyone = range(self.size)
        table = [[part(i, j) for j in everyone] for i in everyone]
        inputs = [self._pool(dtype, Op.SUM).take(i, salt, sum(table[i])).memory for i in everyone]
        given = self._copy(dtype, inputs[self.rank], salt)
        receives = [table[i][self.rank] for i in everyone]
        out = self._room(dtype, sum(receives), True)
        self._call(
            Verb.ALL_TO_ALL, given.address, out.address, 0, dtype,
            in_counts=table[self.rank], out_counts=receives,
        )  # fmt: skip
        out.check_guard()
        pieces = []
        for source in everyone:
            begin = sum(table[source][: self.rank])
            pieces.append(inputs[source][begin : begin + table[source][self.rank]])
        self._equal(Verb.ALL_TO_ALL, out.array, np.concatenate(pieces))
        self._keep(out.array)

    def barrier(self) -> None:
        self._call(Verb.BARRIER, 0, 0, 0, DType.U8)

    def _blocks(self, row: Room, count: int, salt: int) -> list[int] | None:
        """Of some calls of some ranks, where blocks lie one by one: backwards in the row."""
        if (salt + self.rank) % 3:
            return None
        step = count * row.array.itemsize
        return [row.address + (self.size - 1 - rank) * step for rank in range(self.size)]

    def _in_order(self, row: Room, count: int, blocks: object) -> list[Array]:
        """The blocks of a row, by rank."""
        places = [row.array[rank * count : (rank + 1) * count] for rank in range(self.size)]
        return places if blocks is None else places[::-1]

    def _run(
        self, verb: Verb, source: int, out: Room, count: int, dtype: DType, op: Op = Op.SUM,
        root: int = 0, blocks: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        target = 0 if blocks and verb is not Verb.SCATTER else out.address
        self._call(verb, source, target, count, dtype, op, root, blocks=blocks)
        out.check_guard()

    def _call(
        self, verb: Verb, source: int, target: int, count: int, dtype: DType, op: Op = Op.SUM,
        root: int = 0, in_counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None, blocks: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.calls += 1
        self.comm.run(
            verb, source=source, target=target, count=count, dtype=dtype, op=op, root=root,
            in_counts=in_counts, out_counts=out_counts, blocks=blocks, timeout_s=LIMIT_S,
        )  # fmt: skip

    def _pool(self, dtype: DType, op: Op) -> Pool:
        key = dtype, op == Op.PROD
        if key not in self._pools:
            self._pools[key] = pool(*key, self._seed)
        return self._pools[key]

    def _inputs(self, dtype: DType, op: Op, count: int, salt: int) -> list[Pool]:
        whole = self._pool(dtype, op)
        return [whole.take(rank, salt, count) for rank in range(self.size)]

    def _room(self, dtype: DType, count: int, odd: bool) -> Room:
        return Room(dtype, count, odd, self.memory)

    def _copy(self, dtype: DType, memory: Array, salt: int) -> Room:
        room = self._room(dtype, len(memory), bool(salt & 2))
        room.array[:] = memory
        return room

    def _check(
        self, verb: Verb, dtype: DType, op: Op, got: Array, inputs: Sequence[Pool]
    ) -> None:  # fmt: skip
        text = wrong(dtype, op, got, [each.value for each in inputs], self._roundings)
        if text:
            count = len(meaning(dtype, got))
            raise WrongError(
                f"{verb.name} {op.name} of {count} {dtype.name}, {self.size} ranks: {text}"
            )

    def _equal(self, verb: Verb, got: Array, expected: Array) -> None:
        if got.tobytes() != expected.tobytes():
            first = np.flatnonzero(got != expected)[:1]
            raise WrongError(f"{verb.name} of {len(got)}, {self.size} ranks: differs at {first}")

    def _keep(self, array: Array, alike: bool = False) -> None:
        self.own = zlib.crc32(array.tobytes(), self.own)
        if alike:
            self.same = zlib.crc32(array.tobytes(), self.same)
