"""One rank between nodes: `nodes_rank SPEC OUTPUT`; rank 0 writes.

The contenders of a case are gloo and groups of our core that differ in one setting, each over the
same tensor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.collectives.links import enter
from muster_collectives.core import Communicator, DType, Op, Tuning, Verb, Wire, connect
from muster_collectives.tools.bench.cases import LIMIT, Result, read_spec
from muster_collectives.tools.bench.group import LIMIT_S, BenchGroup, measure, place
from muster_collectives.torch.store import TorchStore

_BASE = replace(Tuning(), spin_s=0.0)  # more ranks than processors
GROUPS: Mapping[str, Tuning] = {
    "muster": _BASE,
    "bf16": replace(_BASE, wire=Wire.BF16),
    "int8": replace(_BASE, wire=Wire.I8),
    "default": Tuning(),
    "four streams": replace(Tuning(), streams=4),
    "checked": replace(Tuning(), checked=True),
}
_EXACT = 0.02  # what 8-bit blocks may lose of a value


def main(spec_path: str, output: str) -> None:
    enter(os.environ)
    spec = read_spec(spec_path)
    group = BenchGroup(*place())
    store = TorchStore(group.store, "wires")
    asked = dict.fromkeys(name for case in spec.cases for name in case.names if name in GROUPS)
    comms = {
        name: connect(store, group.rank, group.size, name=name, timeout_s=LIMIT_S,
                      tuning=GROUPS[name])
        for name in asked
    }  # fmt: skip
    for case in spec.cases:
        data = group.torch.zeros(case.size_bytes // 4)
        calls = {name: _call(group, name, comms.get(name), data) for name in case.names}
        _check(group, data, calls)
        series = measure(group, calls, spec.rounds, spec.budget_s)
        group.write(output, Result(case, group.size, series, {}))
    for comm in comms.values():
        comm.close()
    group.close()


def _call(
    group: BenchGroup, name: str, comm: Communicator | None, data: Any
) -> Callable[[], object]:
    """Over gloo where there is no group of ours; LIMIT: two copies of the tensor, as a socket makes
    one of what goes and one of what comes, and two nodes send each other all of it once."""
    if name == LIMIT:
        spare = group.torch.zeros_like(data)
        return lambda: (spare.copy_(data), data.copy_(spare))
    if comm is None:
        return lambda: group.dist.all_reduce(data, group=group.gloo)
    run, address, count = comm.run, data.data_ptr(), len(data)
    return lambda: run(
        Verb.ALL_REDUCE, source=address, target=address, count=count, dtype=DType.F32, op=Op.SUM
    )


def _check(group: BenchGroup, data: Any, calls: Mapping[str, Callable[[], object]]) -> None:
    """Raises ValueError where a sum is wrong; leaves zeros."""
    expected = group.size * (group.size + 1) / 2
    for name, call in calls.items():
        if name == LIMIT:
            continue
        data.fill_(group.rank + 1)
        call()
        off = float((data - expected).abs().max())
        if off > _EXACT * expected:
            raise ValueError(f"{name}: a sum is off by {off} of {expected}")
        data.zero_()


if __name__ == "__main__":
    main(*sys.argv[1:])
