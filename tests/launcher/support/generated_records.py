"""Records of runs that never ran: what `muster report` reads, of any size and with any fault."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from muster.types.values import NamedTuple

START = 1_795_907_478.0  # seconds since 1970
PHASES = (("stage", 0.1), ("plan", 0.6), ("ready", 0.7), ("spawn", 0.8), ("watch", 2.0))


class Made(NamedTuple):
    """What the generated run was. `fails`: the rank that raises, or None; `stalls`: its verdict
    stands before the end; `offsets`: of each host's clock, told in its events."""

    hosts: int = 2
    per_host: int = 2
    steps: int = 200
    seconds: float = 120.0
    fails: int | None = None
    error: str = "ValueError: the batch is empty"
    stall: str = ""
    nan_from: int | None = None
    rate: float = 2.0
    offsets: bool = True
    program: str = "train.py"


def host_name(index: int) -> str:
    return f"algo-{index + 1}"


def write_record(folder: str, made: Made | None = None) -> str:
    """Writes it as `muster local` would; returns the folder."""
    made = made or Made()
    for index in range(made.hosts):
        _write_host(os.path.join(folder, host_name(index)), index, made)
    _write(os.path.join(folder, "summary.json"), json.dumps(summary(made), indent=1))
    return folder


def traceback(made: Made) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/opt/ml/code/{made.program}", line 41, in '
        f"main\n    loss = step(batch)\n{made.error}"
    )


def summary(made: Made) -> dict[str, Any]:
    world = made.hosts * made.per_host
    names = [host_name(index) for index in range(made.hosts)]
    outcome: dict[str, Any] = {"result": "Succeeded", "exit_code": 0, "headline": ""}
    if made.fails is not None:
        host = host_name(made.fails // made.per_host)
        outcome = {
            "result": "Failed", "exit_code": 1, "fix": f"see the last lines of rank {made.fails}",
            "headline": f"UserScriptError: {made.error} ({host} rank {made.fails}, exit code 1)",
            "also_failed": 0, "stopped_ranks": world - 1,
            "first": {"host": host, "rank": made.fails, "status": 1, "at_s": 1.0,
                      "summary": made.error, "tail": traceback(made), "peer_lost": False,
                      "signalled": False, "log": f"/runs/x/{host}/logs/rank-{made.fails}.err",
                      "note": "", "fix": ""},
        }  # fmt: skip
    return {
        "schema": 1, "toolkit": "0.1.0", "job": "digits-4", "program": made.program,
        "option": "torch_distributed", "seconds": made.seconds,
        "hosts": [{"name": name, "group": "g", "leader": name == names[0]} for name in names],
        "plan": {"world_size": world, "master_addr": "algo-1", "ports": {}, "digest": "81"},
        "outcome": outcome, "phases": {},
        "ranks": [
            {"rank": rank, "host": host_name(rank // made.per_host), "local_rank": 0,
             "status": status_of(rank, made), "seconds": made.seconds - 3.0,
             "stopped": status_of(rank, made) < 0, "forced": False}
            for rank in range(world)
        ],
    }  # fmt: skip


def status_of(rank: int, made: Made) -> int:
    return 0 if made.fails is None else 1 if rank == made.fails else -15


def _write_host(folder: str, index: int, made: Made) -> None:
    name = host_name(index)
    base = 1000.0 * (index + 1)  # of the host's monotonic clock
    lines = []

    def event(at: float, kind: str, rank: int | None = None, **fields: object) -> None:
        lines.append({"schema": 1, "t": base + at, "time": START + at, "host": name, "rank": rank,
                      "kind": kind, **fields})  # fmt: skip

    for phase, at in PHASES:
        event(at, "phase", name=phase)
    if index and made.offsets:
        event(0.05, "clock", offset_s=1000.0 - base, round_trip_s=0.0004)
    ranks = range(index * made.per_host, (index + 1) * made.per_host)
    for rank in ranks:
        event(2.0, "rank_started", rank, world_size=made.hosts * made.per_host, pid=100 + rank)
    end = made.seconds - 1.0
    for look in range(int((end - 2.0) / 5)):
        for rank in ranks:
            at = 2.5 + look * 5
            cpu_s = round((at - 2.0) * (0.9 + 0.05 * rank), 2)
            event(at, "sample", rank, pid=100 + rank, cpu_s=cpu_s,
                  run_delay_s=round(0.01 * look, 3), state="R", wchan="0", silent_s=1.0,
                  memory_bytes=int(4e8 + 3e7 * math.log1p(look) + 1e6 * (rank % 7)),
                  throttled_s=None, steal_s=0.0)  # fmt: skip
    if made.stall and not index:
        event(end * 0.8, "stall", verdict=made.stall, ranks=[1], waited_s=60.0)
    for rank in ranks:
        status = status_of(rank, made)
        if rank == made.fails:
            event(end - 0.1, "failure", rank, status=status, summary=made.error, at_s=end)
        event(end, "rank_ended", rank, status=status, stopped=status < 0)
    event(end + 0.1, "phase", name="stop")
    event(end + 0.2, "phase", name="leave")
    event(made.seconds, "phase", name="done")
    _write(os.path.join(folder, "events.jsonl"), as_lines(lines))
    for rank in ranks:
        _write(os.path.join(folder, "logs", f"rank-{rank}.out"), f"epoch 0\nrank {rank} done\n")
        if rank == made.fails:
            _write(os.path.join(folder, "logs", f"rank-{rank}.err"), traceback(made) + "\n")
        if made.steps:
            metrics = os.path.join(folder, "metrics", f"rank-{rank}.jsonl")
            _write(metrics, metrics_lines(rank, made))


def metrics_lines(rank: int, made: Made) -> str:
    """A rank's file of metrics."""
    return as_lines(_metrics(rank, made))


def _metrics(rank: int, made: Made) -> Sequence[Mapping[str, object]]:
    found = []
    for step in range(made.steps):
        noise = math.sin(step * 12.9898 + rank * 78.233) * 43758.5453 % 1.0
        loss = 2.3 * math.exp(-3 * step / made.steps) + 0.15 * noise
        if made.nan_from is not None and step >= made.nan_from:
            loss = math.nan
        shown: float | str = round(loss, 5) if math.isfinite(loss) else "NaN"
        values = {"loss": shown, "accuracy": round(1 - math.exp(-4 * step / made.steps), 4)}
        found.append({"schema": 1, "time": START + 3 + step / made.rate, "step": step,
                      "samples": 64 * (step + 1), "values": values})  # fmt: skip
    return found


def as_lines(entries: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in entries)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
