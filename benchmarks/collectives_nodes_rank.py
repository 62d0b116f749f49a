"""One rank between nodes: `collectives_nodes_rank SIZES ROUNDS OUTPUT`; rank 0 writes."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster_collectives.bench.cases import Case, Result, encode_result
from muster_collectives.bench.group import LIMIT_S, Group, SharedStore, place
from muster_collectives.bench.measure import measure
from muster_collectives.core import DType, Op, Tuning, Verb, Wire, connect

_NEW_NETWORK = 0x40000000
WIRES = {"muster": Wire.SAME, "bf16": Wire.BF16, "int8": Wire.I8}
BUDGET_S = 2.0
_EXACT = 0.02  # what 8-bit blocks may lose of a value


def main(sizes: list[int], rounds: int, output: str) -> None:
    enter(os.environ["BENCH_NAMESPACE"])
    group = Group(*place())
    store = SharedStore(group.dist.PrefixStore("wires", group.store))
    comms = {
        name: connect(store, group.rank, group.size, name=name, timeout_s=LIMIT_S,
                      tuning=replace(Tuning(), wire=wire, spin_s=0.0))
        for name, wire in WIRES.items()
    }  # fmt: skip
    for size in sizes:
        data = group.torch.zeros(size // 4)
        calls: dict[str, Callable[[], object]] = {
            "gloo": lambda data=data: group.dist.all_reduce(data, group=group.gloo)  # type: ignore[misc]
        }
        for name, comm in comms.items():
            calls[name] = lambda run=comm.run, data=data: run(  # type: ignore[misc]
                Verb.ALL_REDUCE, source=data.data_ptr(), target=data.data_ptr(), count=len(data),
                dtype=DType.F32, op=Op.SUM,
            )  # fmt: skip
        _check(group, data, calls)
        series = measure(group, calls, rounds, BUDGET_S)
        if group.rank == 0:
            result = Result(Case("all_reduce", "float32", size, ()), group.size, series, {})
            with open(output, "a", encoding="utf-8") as file:
                file.write(json.dumps(encode_result(result)) + "\n")
    for comm in comms.values():
        comm.close()
    group.close()


def enter(namespace: str) -> None:
    """This process into a network namespace. Before any thread is started. Raises OSError."""
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(handle)


def _check(group: Group, data: Any, calls: dict[str, Callable[[], object]]) -> None:
    """Raises ValueError where a sum is wrong; leaves zeros."""
    expected = group.size * (group.size + 1) / 2
    for name, call in calls.items():
        data.fill_(group.rank + 1)
        call()
        off = float((data - expected).abs().max())
        if off > _EXACT * expected:
            raise ValueError(f"{name}: a sum is off by {off} of {expected}")
        data.zero_()


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1].split(",")], int(sys.argv[2]), sys.argv[3])
