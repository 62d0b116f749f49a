"""One rank that trains: `rank PART ROUNDS OUTPUT`; rank 0 writes."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping

from benchmarks.collectives.links import enter
from benchmarks.collectives.training import ddp, hooks, sharded
from benchmarks.collectives.training.steps import Trained, require_ways
from muster_collectives.tools.bench.cases import Case, Result, encode_result
from muster_collectives.tools.bench.group import BenchGroup, measure, place

PARTS: Mapping[str, Callable[[BenchGroup], Iterator[Trained]]] = {
    "ddp": ddp.trained,
    "ddp-nodes": ddp.between_nodes,
    "sharded": sharded.trained,
    "hooks": hooks.trained,
}
BUDGET_S = 2.0


def main(part: str, rounds: int, output: str) -> None:
    warnings.filterwarnings("ignore")
    enter(os.environ)
    group = BenchGroup(*place())
    for each in PARTS[part](group):
        require_ways(group, each.steps)
        series = measure(group, each.steps, rounds, BUDGET_S)
        each.close()
        case = Case(each.what, "float32", each.size_bytes, tuple(each.steps))
        if group.rank == 0:
            with open(output, "a", encoding="utf-8") as file:
                result = Result(case, group.size, series, {})
                file.write(json.dumps(encode_result(result)) + "\n")
    group.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
