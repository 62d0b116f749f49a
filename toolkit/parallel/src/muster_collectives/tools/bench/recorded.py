"""A run's JSON file: written at its end, read to show the run again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_collectives.tools.bench.cases import Result, decode_result, encode_result


def encode(results: Sequence[Result], machine: str, ranks: int) -> dict[str, Any]:
    """All rounds of all contenders, as JSON values."""
    return {
        "machine": machine, "ranks": ranks,
        "results": [encode_result(result) for result in results],
    }  # fmt: skip


def load(path: Path) -> list[Result]:
    """Raises OSError, ValueError for a file that no run has written."""
    try:
        results = [decode_result(each) for each in json.loads(path.read_bytes())["results"]]
        usable = bool(results) and all(_is_usable(result) for result in results)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is no run of this tool ({error})") from error
    if not usable:
        raise ValueError("it is no run of this tool (no results, or times that cannot be)")
    return results


def _is_usable(result: Result) -> bool:
    times = [second for each in result.series.values() for second in each.seconds]
    return (
        result.ranks > 1
        and result.case.size_bytes > 0
        and all(each.seconds for each in result.series.values())
        and all(math.isfinite(second) and second > 0 for second in times)
    )
