"""Records of one program in several sizes that never ran, with costs that are known."""

from __future__ import annotations

import json
import os

from muster.types.values import NamedTuple
from tests.launcher.support.generated_records import START, Made, as_lines, summary

STEPS = 40


class Costs(NamedTuple):
    """A step of a rank, in seconds. `own_s` and `samples` are of one rank; `warm_s`: how much
    longer each of the first three steps took; `transport`: "" for no summaries of collectives;
    `drift`: how much slower the last step is than the first, as a share."""

    own_s: float
    samples: int = 32
    wait_s: float = 0.0
    talk_s: float = 0.0
    data_s: float | None = None
    warm_s: float = 0.0
    transport: str = "native"
    drift: float = 0.0
    steps: int = STEPS

    @property
    def step_s(self) -> float:
        return self.own_s + self.wait_s + self.talk_s + (self.data_s or 0.0)


def write_size(folder: str, ranks: int, costs: Costs, program: str = "train.py") -> str:
    """A record of a host for each rank; returns the folder."""
    made = Made(hosts=ranks, per_host=1, seconds=60.0, program=program)
    document = summary(made)
    document["job"] = os.path.basename(folder)
    document["phases"] = {f"algo-{n + 1}": {"stage": 1.0, "spawn": 2.0 + n, "watch": 50.0}
                          for n in range(ranks)}  # fmt: skip
    _write(os.path.join(folder, "summary.json"), json.dumps(document))
    for rank in range(ranks):
        host = os.path.join(folder, f"algo-{rank + 1}")
        _write(os.path.join(host, "events.jsonl"), "")
        _write(os.path.join(host, "metrics", f"rank-{rank}.jsonl"), _metrics(costs))
        if costs.transport and ranks > 1:
            calls = {"version": 1, "rank": rank, "global_ranks": list(range(ranks)),
                     "transport": costs.transport, "wait_s": costs.wait_s * costs.steps,
                     "time_s": (costs.wait_s + costs.talk_s) * costs.steps}  # fmt: skip
            path = os.path.join(host, "collectives", f"collectives-world-{rank}-1.json")
            _write(path, json.dumps(calls))
    return folder


def _metrics(costs: Costs) -> str:
    lines, now = [], START
    for step in range(1, costs.steps + 1):
        now += costs.step_s * (1 + costs.drift * step / costs.steps)
        now += costs.warm_s * (step <= 3)
        values = {} if costs.data_s is None else {"data_s": costs.data_s * step}
        lines.append({"schema": 1, "time": now, "step": step, "values": values}
                     | ({"samples": costs.samples * step} if costs.samples else {}))  # fmt: skip
    return as_lines(lines)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
