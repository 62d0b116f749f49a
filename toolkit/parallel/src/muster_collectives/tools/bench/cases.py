"""What is measured and what came out, as values, and a run's JSON file: written at its end, read
to show the run again."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from muster_collectives.runtime.types import DTYPE_NAMES, DType

VERBS = ("all_reduce", "all_gather", "reduce_scatter")
DTYPES: Mapping[str, DType] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
# ours through torch.distributed, ours called without torch, ours on registered memory, ours with
# as many float32; the peers; what reading and writing the memory takes by itself, and what copies
# through the cache and sums take
OURS, CORE, DIRECT, WIDE = "muster", "core", "direct", "float32"
GLOO, MPI, LIMIT, COPIES = "gloo", "mpi", "limit", "copies"
NAMES = (OURS, CORE, DIRECT, WIDE, GLOO, MPI, LIMIT, COPIES)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the bench: a verb, a type, a size. `size_bytes`: of a rank's buffer for
    all_reduce, of the longer side for the other two."""

    verb: str
    dtype: str
    size_bytes: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A run: its cases one after the other, each `rounds` times A B C A B C, with about `budget_s`
    for each contender of a case."""

    cases: tuple[Case, ...]
    rounds: int = 9
    budget_s: float = 0.3


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of one contender in one case. Of every round: seconds of one call on the slowest
    rank, processor seconds of all ranks."""

    seconds: tuple[float, ...]
    cpu_s: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


@dataclass(frozen=True, slots=True)
class Result:
    """A case and every contender's series. `absent`: why a contender was not measured, by its
    name."""

    case: Case
    ranks: int
    series: Mapping[str, Series]
    absent: Mapping[str, str]

    def times(self, slower: str, faster: str) -> tuple[float, float] | None:
        """How many times as long one takes as the other: of the medians, and of the best rounds."""
        if slower not in self.series or faster not in self.series:
            return None
        one, other = self.series[slower], self.series[faster]
        return one.median / other.median, one.best / other.best

    def bus_bytes_per_s(self, name: str) -> float:
        """As NCCL's tests count it: what a link would carry, whatever the number of ranks."""
        share = (self.ranks - 1) / self.ranks * (2 if self.case.verb == "all_reduce" else 1)
        return self.case.size_bytes * share / self.series[name].median


def encode_spec(spec: Spec) -> dict[str, Any]:
    return asdict(spec)


def decode_spec(said: Mapping[str, Any]) -> Spec:
    return Spec(tuple(map(_decode_case, said["cases"])), said["rounds"], said["budget_s"])


def read_spec(path: str) -> Spec:
    """Of a file of `encode_spec`."""
    with open(path, encoding="utf-8") as file:
        return decode_spec(json.load(file))


def encode_result(result: Result) -> dict[str, Any]:
    return asdict(result)


def decode_result(said: Mapping[str, Any]) -> Result:
    series = {
        name: Series(tuple(each["seconds"]), tuple(each["cpu_s"]), each["calls"])
        for name, each in said["series"].items()
    }
    return Result(_decode_case(said["case"]), said["ranks"], series, said["absent"])


def _decode_case(said: Mapping[str, Any]) -> Case:
    return Case(said["verb"], said["dtype"], said["size_bytes"], tuple(said["names"]))


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
