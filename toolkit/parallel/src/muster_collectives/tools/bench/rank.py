"""One rank of a run, `python -m muster_collectives.tools.bench.rank SPEC OUTPUT`; rank 0 writes."""

from __future__ import annotations

import sys

from muster_collectives.tools.bench.cases import Result, read_spec
from muster_collectives.tools.bench.contenders import prepare
from muster_collectives.tools.bench.group import BenchGroup, measure, place


def main(spec_path: str, output_path: str) -> None:
    spec = read_spec(spec_path)
    group = BenchGroup(*place())
    for case in spec.cases:
        made = prepare(group, case)
        series = measure(group, made.calls, spec.rounds, spec.budget_s)
        made.release()
        group.write(output_path, Result(case, group.size, series, made.absent))
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
