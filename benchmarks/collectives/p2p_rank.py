"""One rank of the rows of sends and receives: `p2p_rank SPEC OUTPUT`; rank 0 writes.

A case's verb is a pattern of `PATTERNS`; its contenders are groups of torch.distributed, and Open
MPI where mpirun has started this process.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.collectives.links import enter
from muster_collectives.tools.bench.cases import GLOO, MPI, Case, Result, read_spec
from muster_collectives.tools.bench.group import BenchGroup, measure, place

Call = Callable[[], object]
_FLAG = "BENCH_FLAG"  # a file that both sides map: how the receiver says that it has a message


class Wire:
    """Sends and receives of one contender; `send_later` and `receive_later` give works to wait."""

    def __init__(self, group: BenchGroup, name: str) -> None:
        dist, where = group.dist, group.gloo if name == GLOO else None
        if name == MPI:
            if group.mpi is None:
                raise LookupError("mpirun has not started this run")
            world, kind = group.mpi.COMM_WORLD, group.mpi.BYTE
            self.send: Any = lambda data, peer: world.Send([data.numpy(), kind], peer)
            self.receive: Any = lambda data, peer: world.Recv([data.numpy(), kind], peer)
            self.send_later: Any = lambda data, peer: world.Isend([data.numpy(), kind], peer)
            self.receive_later: Any = lambda data, peer: world.Irecv([data.numpy(), kind], peer)
            return
        self.send = lambda data, peer: dist.send(data, peer, group=where)
        self.receive = lambda data, peer: dist.recv(data, peer, group=where)
        self.send_later = lambda data, peer: dist.isend(data, peer, group=where)
        self.receive_later = lambda data, peer: dist.irecv(data, peer, group=where)


class Flag:
    """Counts messages that have arrived, in a file that ranks of this machine map."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")

    @property
    def count(self) -> int:
        return self._words[0]

    def add(self) -> None:
        self._words[0] += 1


def one_way(group: BenchGroup, wire: Wire, size: int) -> Call:
    data = _bytes(group, size)
    return (lambda: wire.send(data, 1)) if group.rank == 0 else (lambda: wire.receive(data, 0))


def ping_pong(group: BenchGroup, wire: Wire, size: int) -> Call:
    data, peer = _bytes(group, size), 1 - group.rank

    def call() -> None:
        first, then = (wire.send, wire.receive) if peer else (wire.receive, wire.send)
        first(data, peer)
        then(data, peer)

    return call


def pairs(group: BenchGroup, wire: Wire, size: int) -> Call:
    """Every rank to every other at once; of two ranks: both ways."""
    peers = [rank for rank in range(group.size) if rank != group.rank]
    data, rooms = _bytes(group, size), {peer: _bytes(group, size) for peer in peers}

    def call() -> None:
        posted = [wire.receive_later(rooms[peer], peer) for peer in peers]
        posted += [wire.send_later(data, peer) for peer in peers]
        for work in posted:
            work.wait()

    return call


def matmul(group: BenchGroup, wire: Wire, size: int) -> Call:
    """The sender multiplies matrices on one thread until the receiver has the message."""
    square = group.torch.ones(256, 256)
    return _while_away(group, wire, size, lambda: square @ square)


def python(group: BenchGroup, wire: Wire, size: int) -> Call:
    """The same with a sender in pure Python."""
    return _while_away(group, wire, size, lambda: sum(range(1000)))


def _while_away(group: BenchGroup, wire: Wire, size: int, compute: Call) -> Call:
    data, flag = _bytes(group, size), Flag(os.environ[_FLAG])

    def send() -> None:
        before = flag.count
        work = wire.send_later(data, 1)
        while flag.count == before:
            compute()
        work.wait()

    def receive() -> None:
        wire.receive(data, 0)
        flag.add()

    return receive if group.rank else send


PATTERNS: Mapping[str, Callable[[BenchGroup, Wire, int], Call]] = {
    each.__name__: each for each in (one_way, ping_pong, pairs, matmul, python)
}


def _bytes(group: BenchGroup, size: int) -> Any:
    return group.torch.ones(size, dtype=group.torch.uint8)


def main(spec_path: str, output: str) -> None:
    enter(os.environ)
    os.environ[_FLAG] = f"{output}.flag"
    spec = read_spec(spec_path)
    group = BenchGroup(*place())
    if group.rank == 0:
        with open(os.environ[_FLAG], "wb") as flag:
            flag.write(bytes(8))
    group.core.barrier()
    for case in spec.cases:
        group.write(output, _measured(group, case, spec.rounds, spec.budget_s))
    group.close()


def _measured(group: BenchGroup, case: Case, rounds: int, budget_s: float) -> Result:
    calls, absent = {}, {}
    for name in case.names:
        try:
            calls[name] = PATTERNS[case.verb](group, Wire(group, name), case.size_bytes)
        except LookupError as error:
            absent[name] = str(error)
    return Result(case, group.size, measure(group, calls, rounds, budget_s), absent)


if __name__ == "__main__":
    main(*sys.argv[1:])
