"""`make bench-modelparallel`: steps of a model beside its peers' (ROWS="pipeline ddp" for some,
ROUNDS=3 for fewer rounds)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.collectives.gates import Gate, judged, settled
from benchmarks.modelparallel import memory
from benchmarks.report import Beginning, report
from benchmarks.table import Row, under
from muster_collectives.tools.bench.cases import Case, Result, Series
from tests.model_parallel.support.ranks import run_ranks, words_of
from tests.support.frameworks import deepspeed_packages

_SCRIPT = Path(__file__).with_name("contenders.py")
_RESULTS = Path(__file__).parents[1] / "results" / "modelparallel.json"
_LIMIT_S = 400.0
_OURS = "ours"


class Spec(NamedTuple):
    """A row: by how much ours must be faster than each peer, and on how many ranks. `steps`:
    microbatches by which the time is divided. `most_more_ms`: what ours may cost more than peers
    that are not in `least`."""

    what: str
    least: dict[str, float]
    ranks: int = 2
    steps: int = 1
    most_more_ms: float = 0.0


_GPT = "step of a GPT of 12 blocks, vocabulary of 8,000, 8 microbatches, 2 stages"
_RELAYS = {"16KiB": (1 << 14, 1.8), "1MiB": (1 << 20, 1.5), "4MiB": (1 << 22, 1.2),
           "16MiB": (1 << 24, 1.2)}  # fmt: skip
SPECS = {
    "pipeline": Spec(_GPT, {"torch, equal blocks, gloo": 1.10, "torch, equal blocks, muster": 1.0}),
    "deepspeed": Spec(f"{_GPT}, with SGD, gloo", {"DeepSpeed": 1.1}),
    "ddp": Spec("the same GPT whole, 2 replicas", {"DDP": 0.97}),
    "sharded": Spec(
        "the same with parameters cut over 2 replicas, and AdamW",
        {"fully_shard, gloo": 0.97, "fully_shard, muster": 0.97},
    ),
    "checkpoint": Spec(
        "call that saves 100 MB of 2 ranks in pieces, in the background", {"at once": 4.0}
    ),
    "alone": Spec("step of 20 ms, one rank, one microbatch", {"plain loop": 0.97}, ranks=1),
    "microbatches": Spec(
        "microbatch of next to no work, one rank", {}, ranks=1, steps=8, most_more_ms=0.3
    ),
    "microbatch": Spec(
        "microbatch of next to no work, 2 stages, muster", {}, steps=8, most_more_ms=0.3
    ),
    **{
        f"relay-{size}": Spec(
            f"8 microbatches of 1F1B that compute nothing, activations of {size}", {"gloo": least}
        )
        for size, (_, least) in _RELAYS.items()
    },
    # as much of the simulated step as it may take: needs as many free cores as stages
    "simulated": Spec(f"{_GPT}, beside its plan", {"simulated": 1 / 1.15}),
}


MEMORY = {"memory": memory.stages, "plan": memory.plan}


def measured(name: str) -> Row:
    """Raises AssertionError where a rank does not end well."""
    if name in MEMORY:
        return MEMORY[name]()
    spec = SPECS[name]
    gates = [Gate(peer, _OURS, least) for peer, least in spec.least.items()]
    first = _run(name)
    result = settled([first], lambda _: gates, lambda _: [_run(name)])[0]
    more = [
        under(
            (result.series[_OURS].median - series.median) * 1e3,
            spec.most_more_ms,
            "ms",
            f"more than {peer}",
        )
        for peer, series in result.series.items()
        if peer != _OURS and peer not in spec.least
    ]
    return judged(result, _OURS, gates, spec.what, "ms", more)


def _run(name: str) -> Result:
    """The contenders in turns, in new processes."""
    spec = SPECS[name]
    env = {"PYTHONPATH": str(deepspeed_packages())} if name == "deepspeed" else {}
    row, _, size = name.partition("-")
    given: list[object] = [row, _RELAYS[size][0]] if size else [row]
    ends = run_ranks(_SCRIPT, spec.ranks, arguments=given, env=env, limit_s=_LIMIT_S, fresh=True)
    line = next((one for one in ends[0].out.splitlines() if one.startswith("TIMES ")), None)
    assert line is not None, words_of(ends)
    times: dict[str, list[float]] = json.loads(line.removeprefix("TIMES "))
    series = {
        each: Series(tuple(one / spec.steps for one in seconds), (), 1)
        for each, seconds in times.items()
    }
    return Result(Case(name, "float32", 0, tuple(times)), spec.ranks, series, {})


def main(names: list[str]) -> int:
    began = Beginning.now()
    rows: list[Row] = []
    broken: dict[str, str] = {}
    for name in names or (*SPECS, *MEMORY):
        try:
            rows.append(measured(name))
        except Exception as error:
            broken[name] = str(error)[-2000:]
        print(f"bench-modelparallel: {name} done", file=sys.stderr, flush=True)
    code = report(
        "bench-modelparallel", began, rows, broken,
        results=None if names else _RESULTS, as_json="JSON" in os.environ,
    )  # fmt: skip
    for row in rows:
        print(f"{row.what}: {row.detail}")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
