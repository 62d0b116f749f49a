"""One rank of the matrix of verbs: `matrix_rank SPEC OUTPUT`; rank 0 writes.

A case's `size_bytes` is that of the longer side of the verb, as torch's users count it: the whole
of a gather, a scatter or an all-to-all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.collectives.links import enter
from muster_collectives.tools.bench.cases import GLOO, Result, read_spec
from muster_collectives.tools.bench.group import BenchGroup, measure, place

Call = Callable[[], object]
_ROOT = 0


class Calls:
    """The verbs, each over tensors that stay: `whole` of `count` float32, `part` of a rank's
    share, and lists of parts; of the group of torch.distributed that `over` names."""

    def __init__(self, group: BenchGroup, over: Any, size_bytes: int) -> None:
        self.group, self.dist, self.over = group, group.dist, over
        share = max(1, size_bytes // 4 // group.size)
        self.whole, self.part = _zeros(group, share * group.size), _zeros(group, share)
        self.other = _zeros(group, share * group.size)
        self.parts = [_zeros(group, share) for _ in range(group.size)]
        self.is_root = group.rank == _ROOT
        self.object = bytes(size_bytes)

    def all_reduce(self) -> object:
        return self.dist.all_reduce(self.whole, group=self.over)

    def all_gather(self) -> object:
        return self.dist.all_gather(self.parts, self.part, group=self.over)

    def all_gather_into_tensor(self) -> object:
        return self.dist.all_gather_into_tensor(self.whole, self.part, group=self.over)

    def reduce_scatter_tensor(self) -> object:
        return self.dist.reduce_scatter_tensor(self.part, self.whole, group=self.over)

    def broadcast(self) -> object:
        return self.dist.broadcast(self.whole, _ROOT, group=self.over)

    def reduce(self) -> object:
        return self.dist.reduce(self.whole, _ROOT, group=self.over)

    def gather(self) -> object:
        into = self.parts if self.is_root else None
        return self.dist.gather(self.part, into, _ROOT, group=self.over)

    def scatter(self) -> object:
        of = self.parts if self.is_root else None
        return self.dist.scatter(self.part, of, _ROOT, group=self.over)

    def all_to_all_single(self) -> object:
        return self.dist.all_to_all_single(self.other, self.whole, group=self.over)

    def barrier(self) -> object:
        return self.dist.barrier(group=self.over)

    def all_gather_object(self) -> object:
        found = [None] * self.group.size
        return self.dist.all_gather_object(found, self.object, group=self.over)

    def broadcast_object_list(self) -> object:
        return self.dist.broadcast_object_list([self.object], _ROOT, group=self.over)

    def send_and_receive(self) -> object:
        """To the next rank, from the one before."""
        rank, size = self.group.rank, self.group.size
        works = [
            self.dist.irecv(self.other, (rank - 1) % size, group=self.over),
            self.dist.isend(self.whole, (rank + 1) % size, group=self.over),
        ]
        return [work.wait() for work in works]


VERBS: Mapping[str, Callable[[Calls], object]] = {
    name: verb for name, verb in vars(Calls).items() if not name.startswith("_")
}


def _zeros(group: BenchGroup, count: int) -> Any:
    """Zeros: a sum of anything else, put into its own place some thousand times, would overflow."""
    return group.torch.zeros(count)


def main(spec_path: str, output: str) -> None:
    enter(os.environ)
    spec = read_spec(spec_path)
    group = BenchGroup(*place())
    for case in spec.cases:
        calls = {name: _call(group, name, case.verb, case.size_bytes) for name in case.names}
        series = measure(group, calls, spec.rounds, spec.budget_s)
        group.write(output, Result(case, group.size, series, {}))
    group.close()


def _call(group: BenchGroup, name: str, verb: str, size_bytes: int) -> Call:
    calls = Calls(group, group.gloo if name == GLOO else None, size_bytes)
    return lambda: VERBS[verb](calls)


if __name__ == "__main__":
    main(*sys.argv[1:])
