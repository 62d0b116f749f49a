"""One rank of a run, `python -m muster_collectives.tools.bench.rank SPEC OUTPUT`; rank 0 writes."""

from __future__ import annotations

import json
import sys

from muster_collectives.tools.bench.cases import Result, decode_spec, encode_result
from muster_collectives.tools.bench.contenders import prepare
from muster_collectives.tools.bench.group import BenchGroup, measure, place


def main(spec_path: str, output_path: str) -> None:
    with open(spec_path, encoding="utf-8") as file:
        spec = decode_spec(json.load(file))
    group = BenchGroup(*place())
    for case in spec.cases:
        made = prepare(group, case)
        series = measure(group, made.calls, spec.rounds, spec.budget_s)
        made.release()
        if group.rank == 0:
            result = Result(case, group.size, series, made.absent)
            with open(output_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(encode_result(result)) + "\n")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
