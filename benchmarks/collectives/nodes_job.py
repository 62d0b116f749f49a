"""Measures cases on ranks of several nodes, each rank with variables of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from muster_collectives.tools.bench.cases import Result, Spec, decode_result, encode_spec
from tests.collectives.support import ranks

JOB_S = 900.0


def run_ranks(environs: Sequence[dict[str, str]], argv: Sequence[str]) -> None:
    """A rank for each of `environs`. Raises RuntimeError with what they wrote."""
    ended = ranks.run(len(environs), list(argv), each_env=environs, timeout_s=JOB_S)
    if any(each.code for each in ended):
        raise RuntimeError(ranks.shown(ended)[-3000:])


def run(spec: Spec, environs: Sequence[dict[str, str]], script: str = "nodes_rank") -> list[Result]:
    """A rank of `script` for each of `environs`. Raises RuntimeError with what they wrote."""
    with tempfile.TemporaryDirectory(prefix="mc-bench-") as folder:
        path, output = Path(folder) / "spec.json", Path(folder) / "results.jsonl"
        path.write_text(json.dumps(encode_spec(spec)))
        argv = ["-m", f"benchmarks.collectives.{script}", str(path), str(output)]
        run_ranks(environs, argv)
        return [decode_result(json.loads(line)) for line in output.read_text().splitlines()]
